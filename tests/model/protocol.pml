/* What the models share: the arenas, and the steps by which ranks hand data to each other.
 *
 * A rank makes calls forever. Call numbers wrap after NUMBERS, counts of steps after STEPS. What
 * the calls are is chosen at random, equal on all ranks; with ODD_ONES, now and then one rank makes
 * another call than the rest, or refuses. With TROUBLE a rank dies or the group is aborted, once,
 * at any moment.
 *
 * A slot holds no data here but says what it holds: `tag` is the call and the chunk, `unread` the
 * set of ranks that have yet to read it. To fill a slot that somebody has yet to read is an error,
 * and so is to read anything but what should lie there. A wait that never ends is found as well: no
 * state may be one in which nobody can move.
 *
 * A macro that is defined on the command line plants a fault; README.md has their list. */

#ifndef RANKS
#define RANKS 2
#endif
#define NOBODY RANKS
#define NUMBERS 4
#ifdef CALL_IN_STEP
#define STEPS 32
#else
#define STEPS 16
#endif

/* A call in a byte, which is also its signature. */
#define FLAT 0
#define TREE 1
#define FROM_ROOT 2
#define TO_ROOT 3
#define REFUSED 255
#define CALL(kind, chunks, root) ((kind) << 4 | (chunks) << 2 | (root))
#define kind (call >> 4)
#define chunks (call >> 2 & 3)
#define root (call & 3)

#define me _pid
#define only(r) (1 << (r))
#define all_but(r) (((1 << RANKS) - 1) & ~only(r))
#define writes (kind == FROM_ROOT -> me == root : (kind == TO_ROOT -> me != root : true))
#define readers (kind == FROM_ROOT -> all_but(root) : (kind == TO_ROOT -> only(root) : all_but(me)))

#ifdef ONE_ENTRY
#define entry_of(r, n) arena[r].entry[0]
#else
#define entry_of(r, n) arena[r].entry[(n) & 1]
#endif

#define RESULT 2
#ifdef ONE_SLOT
#define slot_of(rotation, c) 0
#elif defined(SLOT_BY_NUMBER)
#define slot_of(rotation, c) ((number ^ (c)) & 1)
#else
#define slot_of(rotation, c) ((rotation ^ (c)) & 1)
#endif

/* Order across the wrap: the difference, read as a signed number. */
#ifdef RAW_COMPARE
#define has_reached(count, target) ((count) >= (target))
#else
#define has_reached(count, target) (((count) - (target) + STEPS) % STEPS < STEPS / 2)
#endif

typedef Entry {
  byte number;
  byte signature;
  bit rotation  /* the slot of chunk 0 */
}
typedef Slot {
  byte tag;
  byte unread
}
typedef Arena {
  Entry entry[2];
  byte step;     /* how often the rank has published within its calls */
  Slot slot[3];  /* two for staging, one for results */
  bit revoked
}
Arena arena[RANKS];
byte dead = NOBODY;

/* The calls to come, by the parity of their number. `latest` is the last one that was chosen. */
byte latest, script[2], odd_rank[2], odd_call[2];

inline choose_calls(which) {
  choose(script[which]);
  odd_rank[which] = NOBODY;
#ifdef ODD_ONES
  if
  :: true
  :: choose_rank(odd_rank[which]);
     if
     :: odd_call[which] = REFUSED
     :: choose(odd_call[which])
     fi;
     if
     :: odd_call[which] == script[which] -> odd_rank[which] = NOBODY
     :: else
     fi
  fi
#endif
}

inline choose_rank(r) {
  if
  :: r = 0
  :: r = 1
#if RANKS > 2
  :: r = 2
#endif
#if RANKS > 3
  :: r = 3
#endif
  fi
}

inline begin() {
  atomic {
    number = (number + 1) % NUMBERS;
    if
    :: number == (latest + 1) % NUMBERS -> latest = number; choose_calls(number & 1)
    :: else
    fi;
    is_odd = odd_rank[number & 1] != NOBODY;
    call = (odd_rank[number & 1] == me -> odd_call[number & 1] : script[number & 1]);
#ifdef CALL_IN_STEP
    base = number * 8;
#else
    base = arena[me].step;
#endif
    target = base
  }
}

/* Every wait ends when its condition holds, or when the group is known to be broken. */
inline wait_until(condition) {
  if
  :: condition
#ifdef TROUBLE
  :: arena[me].revoked || dead != NOBODY -> goto raised
#endif
  fi
}

inline publish_entry() {
  atomic {
    entry_of(me, number).signature = call;
    entry_of(me, number).rotation = rotation;
    entry_of(me, number).number = number
  }
}

/* A rank that refused a call has not waited for the others' entries, so it does before it goes on:
 * its next entry takes the place of the one before the refused call, for which they may look. */
#define previous ((number + NUMBERS - 1) % NUMBERS)
#if defined(RUN_AFTER_REFUSAL)
#define must_wait (has_refused && call == REFUSED)
#elif defined(REFUSE_AFTER_REFUSAL)
#define must_wait (has_refused && call != REFUSED)
#else
#define must_wait has_refused
#endif

/* Whose entry this rank waits for: every peer's, whatever the call. */
#ifdef ROOT_ENTRY_ONLY
#define awaits(r) (r != me && (kind != FROM_ROOT || me == root || r == root))
#else
#define awaits(r) (r != me)
#endif

/* Until all have entered call `n`; tells in `differs` whether they made another call than this. */
inline wait_entries(n) {
  atomic {
    differs = false;
    for (p : 0 .. RANKS - 1) {
      if
      :: awaits(p) ->
         wait_until(entry_of(p, n).number == n);
         differs = differs || entry_of(p, n).signature != call
#ifdef MISMATCH_AT_ONCE
         ;
         if
         :: differs -> break
         :: else
         fi
#endif
      :: else
      fi
    }
    p = 0
  }
}

inline publish() {
  atomic {
    target = (target + 1) % STEPS;
    arena[me].step = target
  }
}

/* Until peer `r` has published `count` times in this call. */
inline wait_step(r, count) { wait_until(has_reached(arena[r].step, (base + (count)) % STEPS)) }

inline wait_steps(count) {
  atomic {
    for (p : 0 .. RANKS - 1) {
      if
      :: p == me
      :: else -> wait_step(p, count)
      fi
    }
    p = 0
  }
}

inline fill(which, c) {
  atomic {
    assert(arena[me].slot[which].unread == 0);
    arena[me].slot[which].tag = number * 4 + (c);
    arena[me].slot[which].unread = readers
  }
}
inline stage(c) { fill(slot_of(rotation, c), c) }

inline stage_and_publish(c) {
#ifdef FLAG_FIRST
  publish();
  stage(c)
#else
  stage(c);
  publish()
#endif
}

/* Nobody will read what was staged for a call that failed. */
inline drop() {
  atomic {
    arena[me].slot[slot_of(rotation, 0)].unread = 0;
    arena[me].slot[slot_of(rotation, 0)].tag = 0
  }
}

inline read(r, which, c) {
  d_step {
    assert(arena[r].slot[which].tag == number * 4 + (c));
    assert(arena[r].slot[which].unread & only(me));
    arena[r].slot[which].unread = arena[r].slot[which].unread & ~only(me);
    arena[r].slot[which].tag = (arena[r].slot[which].unread -> arena[r].slot[which].tag : 0)
  }
}
inline read_staged(r, c) { read(r, slot_of(entry_of(r, number).rotation, c), c) }

inline read_all_staged(c) {
  atomic {
    for (p : 0 .. RANKS - 1) {
      if
      :: p == me
      :: else -> read_staged(p, c)
      fi
    }
    p = 0
  }
}
