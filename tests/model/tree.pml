/* Tree all_reduce: every rank reduces its slice of everybody's chunk into its result slot; when all
 * have, everyone gathers the slices. One result slot is enough: a rank fills it again when everybody
 * has published the next chunk, which comes after gathering this one. */

#define STEPS 4
#include "protocol.pml"

inline choose(call) {
  if
  :: call = CALL(FLAT, 1, 0)
  :: call = CALL(TREE, 2, 0)
#ifdef MORE_CALLS
  :: call = CALL(TREE, 1, 0)
  :: call = CALL(TREE, 3, 0)
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

inline read_results() {
  for (p : 0 .. RANKS - 1) {
    if
    :: p == me
    :: else -> read(p, RESULT, c)
    fi
  }
  p = 0
}

#ifdef GATHER_AT_ONCE
#define must_wait false
#else
#define must_wait true
#endif

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
       if
       :: kind == TREE -> fill(RESULT, c); publish()
       :: else
       fi
     }
     atomic {
       if
       :: kind == TREE && must_wait -> wait_steps(reached)
       :: else
       fi;
       if
       :: kind == TREE -> read_results()
       :: else
       fi;
       c++
     }
  od
}

#include "rank.pml"
