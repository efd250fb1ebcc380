/* Calls in which data flows from the root to all (broadcast, scatter) or from all to the root
 * (gather, reduce). A writer fills a slot again when its readers have published that they are done
 * with the chunk that lay there, a ring ago. At the end it waits for the last chunk but one: the
 * next call may stage before it enters, into any slot but that of the last chunk. */

#define STEPS 8
#include "protocol.pml"

inline choose_root(call, what, n) {
  if
  :: call = CALL(what, n, 0)
  :: call = CALL(what, n, 1)
#if RANKS > 2
  :: call = CALL(what, n, 2)
#endif
  fi
}

inline choose(call) {
  if
  :: call = CALL(FLAT, 1, 0)
  :: choose_root(call, FROM_ROOT, 1)
  :: choose_root(call, TO_ROOT, 1)
  :: choose_root(call, FROM_ROOT, 2)
  :: choose_root(call, TO_ROOT, 2)
  :: choose_root(call, FROM_ROOT, 3)
  :: choose_root(call, TO_ROOT, 3)
  fi
}

/* Until those who read what this rank writes have published `count` times. */
inline wait_readers(count) {
  for (p : 0 .. RANKS - 1) {
    if
    :: readers & only(p) -> wait_step(p, count)
    :: else
    fi
  }
  p = 0
}

inline write_chunk() {
  atomic {
#ifndef STAGE_AT_ONCE
    if
    :: c >= SLOTS -> wait_readers(c - SLOTS + 1)
    :: else
    fi;
#endif
    stage_and_publish(c)
  }
}
