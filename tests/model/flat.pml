/* Calls in which every rank reads every other's chunk: flat all_reduce, all_gather, reduce_scatter,
 * all_to_all. Two slots are enough, since every rank waits for every other at every chunk. */

#define STEPS 4
#include "protocol.pml"

inline choose(call) {
  if
  :: call = CALL(FLAT, 1, 0)
  :: call = CALL(FLAT, 3, 0)
#ifdef MORE_CALLS
  :: call = CALL(FLAT, 2, 0)
  :: call = CALL(FLAT, 0, 0) /* a barrier */
#endif
  fi
}

inline read_chunks() {
  for (p : 0 .. RANKS - 1) {
    if
    :: p == me
    :: else -> read_staged(p, c)
    fi
  }
  p = 0
}

inline transfer() {
  do
  :: c == chunks -> c = 0; break
  :: c < chunks ->
     if
     :: chunks > 1 -> stage_and_publish(c)
     :: else
     fi;
     atomic {
       if
       :: chunks > 1 -> wait_steps(reached)
       :: else
       fi;
       read_chunks();
       c++
     }
  od
}

#include "rank.pml"
