/* Calls in which every rank reads every other's chunk: flat all_reduce, all_gather, reduce_scatter,
 * all_to_all. Two slots are enough, since every rank waits for every other at every chunk. */

#include "protocol.pml"

inline choose(call) {
  if
  :: call = CALL(FLAT, 0, 0) /* a barrier */
  :: call = CALL(FLAT, 1, 0)
  :: call = CALL(FLAT, 2, 0)
  :: call = CALL(FLAT, 3, 0)
  fi
}

inline transfer() {
  c = 0;
  do
  :: c == chunks -> c = 0; break
  :: c < chunks ->
     if
     :: chunks > 1 -> stage_and_publish(c); wait_steps(c + 1)
     :: else
     fi;
     read_all_staged(c);
     c++
  od
}

#include "rank.pml"
