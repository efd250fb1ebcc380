/* Calls in which data flows from the root to all (broadcast, scatter) or from all to the root
 * (gather, reduce). A writer fills a slot again when its readers have published that they are done
 * with the chunk that lay there, a ring ago. At the end it waits for the last chunk but one: the
 * next call may stage before it enters, into any slot but that of the last chunk. */

#define STEPS 8
#include "protocol.pml"

#define sources (kind == FROM_ROOT -> only(root) : all_but(me))
#define step_of(c) ((base + (c) + 1) % STEPS) /* when chunk `c` is written, or read */

/* Two roots give calls of the same one and of another. Of four ranks only one is a root, and only it
 * writes, to keep the states few. */
inline choose_root(call, what, n) {
  if
  :: call = CALL(what, n, 0)
#if RANKS < 4
  :: call = CALL(what, n, 1)
#endif
  fi
}

inline choose(call) {
  if
  :: choose_root(call, FROM_ROOT, 1)
  :: choose_root(call, FROM_ROOT, SLOTS + 1)
#if RANKS < 4
  :: call = CALL(FLAT, 1, 0)
  :: choose_root(call, TO_ROOT, SLOTS + 1)
#endif
#ifdef MORE_CALLS
  :: choose_root(call, TO_ROOT, 1)
  :: choose_root(call, FROM_ROOT, 2)
  :: choose_root(call, TO_ROOT, SLOTS + 2)
#endif
  fi
}

/* Until all who read what this rank writes are done with chunk `c`. */
inline wait_readers(c) {
  for (p : 0 .. RANKS - 1) {
    if
    :: readers & only(p) -> wait_step(p, step_of(c))
    :: else
    fi
  }
  p = 0
}

#ifdef STAGE_AT_ONCE
#define is_slot_used false
#else
#define is_slot_used (c >= SLOTS)
#endif
#ifdef NO_END_RULE
#define must_wait_at_end false
#else
#define must_wait_at_end (chunks > 1 && writes)
#endif

inline write_chunk() {
  atomic {
    if
    :: is_slot_used -> wait_readers(c - SLOTS)
    :: else
    fi;
    stage_and_publish(c)
  }
}

inline read_chunk() {
  atomic {
    for (p : 0 .. RANKS - 1) {
      if
      :: sources & only(p) ->
         if
         :: chunks > 1 -> wait_step(p, step_of(c))
         :: else
         fi;
         read_staged(p, c)
      :: else
      fi
    }
    p = 0;
    if
    :: chunks > 1 -> publish()
    :: else
    fi
  }
}

inline transfer() {
  do
  :: c == chunks -> break
  :: c < chunks ->
     if
     :: chunks > 1 && writes -> write_chunk()
     :: else
     fi;
     if
     :: kind == FLAT || !writes -> read_chunk()
     :: else
     fi;
     c++
  od;
  if
  :: must_wait_at_end -> atomic { wait_readers(chunks - 2) }
  :: else
  fi;
  c = 0
}

#include "rank.pml"
