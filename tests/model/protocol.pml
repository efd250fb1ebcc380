/* What the models share: the arenas, and the steps by which ranks hand data to each other.
 *
 * A rank makes calls forever. Call numbers wrap after NUMBERS, the count of steps after STEPS. What
 * the calls are is chosen at random, equal on all ranks. With MISMATCH, now and then one rank
 * makes another call than the rest; with REFUSAL, it refuses the call. With TROUBLE a rank dies or
 * the group is aborted, once, at any moment.
 *
 * A slot holds no data here but says what it holds: `tag` is the call and the chunk, `unread` the
 * set of ranks that have yet to read it. To fill a slot that somebody has yet to read is an error,
 * and so is to read anything but what should lie there. A wait that never ends is found as well: no
 * state may be one in which nobody can move.
 *
 * What a rank does between two publications, others see at the second. So the waits, reads and
 * stagings in between are one step (`atomic`) where that can be written; it may be taken as late as
 * the next publication and as early as its waits allow, and both are searched. What has served is
 * cleared, to keep the states few.
 *
 * A macro defined on the command line plants a fault; README.md has their list. */

#ifndef RANKS
#define RANKS 2
#endif
#define NOBODY RANKS
#define NUMBERS 4
#ifndef SLOTS
#define SLOTS 2
#endif

/* A call in a byte. */
#define FLAT 0
#define TREE 1
#define FROM_ROOT 2
#define TO_ROOT 3
#define REFUSED 255
#define CALL(kind, chunks, root) ((kind) << 5 | (chunks) << 2 | (root))
#define kind (call >> 5)
#define chunks (call >> 2 & 7)
#define root (call & 3)

#define me _pid
#define only(r) (1 << (r))
#define all_but(r) (((1 << RANKS) - 1) & ~only(r))
#define writes (kind == FROM_ROOT -> me == root : (kind == TO_ROOT -> me != root : true))
#define readers (kind == FROM_ROOT -> all_but(root) : (kind == TO_ROOT -> only(root) : all_but(me)))

#define previous ((number + NUMBERS - 1) % NUMBERS)
#ifdef ONE_ENTRY
#define entry_of(r, n) arena[r].entry[0]
#else
#define entry_of(r, n) arena[r].entry[(n) & 1]
#endif

#define RESULT SLOTS
#ifdef ONE_SLOT
#define slot_of(where, c) 0
#elif defined(SLOT_BY_NUMBER)
#define slot_of(where, c) ((number + (c)) % SLOTS)
#else
#define slot_of(where, c) ((where + (c)) % SLOTS)
#endif

/* Steps are counted on through all calls, since a rank's count at the start of a call is every
 * rank's. Order across the wrap is the difference, read as a signed number. */
#ifdef CALL_IN_STEP
#undef STEPS
#define STEPS (NUMBERS * 4)
#define first_step (number * 4)
#else
#define first_step arena[me].step
#endif
#ifdef RAW_COMPARE
#define has_reached(count, target) ((count) >= (target))
#else
#define has_reached(count, target) (((count) - (target) + STEPS) % STEPS < STEPS / 2)
#endif

typedef Entry {
  byte number;
  byte where;    /* the slot of chunk 0 */
  bit signature  /* tells the odd one's call from the others' */
}
typedef Slot {
  byte tag;
  byte unread
}
typedef Arena {
  Entry entry[2];
  byte step;             /* how often the rank has published within its calls */
  Slot slot[SLOTS + 1];  /* a ring for staging, and the result slot */
  bit revoked
}
Arena arena[RANKS];
byte dead = NOBODY;

/* The calls that some ranks have begun and others not, by the parity of their number; `latest` is
 * the last one that was chosen. */
byte latest, script[2], odd_rank[2] = NOBODY, odd_call[2], begun[2];

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

inline choose_calls(which) {
  choose(script[which]);
#if defined(MISMATCH) || defined(REFUSAL)
  if
  :: true
  :: choose_rank(odd_rank[which]);
     if
#ifdef REFUSAL
     :: odd_call[which] = REFUSED
#endif
#ifdef MISMATCH
     :: choose(odd_call[which]);
        if
        :: odd_call[which] == script[which] -> forget_odd_one(which)
        :: else
        fi
#endif
     fi
  fi
#endif
}

inline forget_odd_one(which) {
  odd_rank[which] = NOBODY;
  odd_call[which] = 0
}

inline begin() {
  number = (number + 1) % NUMBERS;
  if
  :: number == (latest + 1) % NUMBERS -> latest = number; choose_calls(number & 1)
  :: else
  fi;
  is_mixed = odd_rank[number & 1] != NOBODY;
  is_odd = odd_rank[number & 1] == me;
  call = (is_odd -> odd_call[number & 1] : script[number & 1]);
  begun[number & 1]++;
  if
  :: begun[number & 1] == RANKS ->
     begun[number & 1] = 0;
     script[number & 1] = 0;
     forget_odd_one(number & 1)
  :: else
  fi;
  base = first_step;
  reached = base
}

/* Not after a refusal: peers may still be in the call before it. */
inline end() {
  d_step {
    if
    :: call == REFUSED
    :: else ->
       where = (where + chunks) % SLOTS;
       entry_of(me, previous).where = 0;
       entry_of(me, previous).signature = 0
    fi;
    call = 0;
    differs = false;
    is_mixed = false;
    is_odd = false;
    base = 0;
    reached = 0
  }
}

/* Every wait ends when its condition holds, or when the group is known to be broken. */
#ifdef DEATH_UNNOTICED
#define is_broken arena[me].revoked
#else
#define is_broken (arena[me].revoked || dead != NOBODY)
#endif
inline wait_until(condition) {
  if
  :: condition
  :: is_broken -> goto gone
  fi
}

/* To die between two publications is to die before the second: nobody can tell. */
inline stop_if_dead() {
  if
  :: dead == me -> goto gone
  :: else
  fi
}

inline publish_entry() {
  stop_if_dead();
  entry_of(me, number).where = where;
  entry_of(me, number).signature = is_odd;
  entry_of(me, number).number = number
}

inline publish() {
  stop_if_dead();
  reached = (reached + 1) % STEPS;
  arena[me].step = reached
}

/* Whose entry this rank waits for: every peer's, whatever the call. */
#ifdef ROOT_ENTRY_ONLY
#define awaits(r) (r != me && (kind != FROM_ROOT || me == root || r == root))
#else
#define awaits(r) (r != me)
#endif
#ifdef MISMATCH_AT_ONCE
#define is_settled differs
#else
#define is_settled false
#endif

/* Until all have entered call `n`; tells in `differs` whether any made another call than this. */
inline wait_entries(n) {
  differs = false;
  for (p : 0 .. RANKS - 1) {
    if
    :: awaits(p) && !is_settled ->
       wait_until(entry_of(p, n).number == n);
       differs = differs || entry_of(p, n).signature != is_odd
    :: else
    fi
  }
  p = 0
}

/* A rank that refused a call has not waited for the others to enter it. It does before it enters
 * the next: that entry takes the place of the one before the refused call's, for which they look. */
#if defined(RUN_AT_ONCE)
#define has_to_wait (has_refused && call == REFUSED)
#elif defined(REFUSE_AT_ONCE)
#define has_to_wait (has_refused && call != REFUSED)
#else
#define has_to_wait has_refused
#endif

/* Until peer `r`, or every peer, has published as often as a rank has that stands at `goal`. */
inline wait_step(r, goal) { wait_until(has_reached(arena[r].step, goal)) }
inline wait_steps(goal) {
  for (p : 0 .. RANKS - 1) {
    if
    :: p == me
    :: else -> wait_step(p, goal)
    fi
  }
  p = 0
}

inline fill(which, c) {
  assert(arena[me].slot[which].unread == 0);
  arena[me].slot[which].tag = number * 4 + (c);
  arena[me].slot[which].unread = readers
}
inline stage(c) { fill(slot_of(where, c), c) }

#ifdef FLAG_FIRST
inline stage_and_publish(c) { publish(); stage(c) }
#else
inline stage_and_publish(c) { atomic { stage(c); publish() } }
#endif

/* Nobody will read what was staged for a call that failed. */
inline drop() {
  d_step {
    arena[me].slot[slot_of(where, 0)].unread = 0;
    arena[me].slot[slot_of(where, 0)].tag = 0
  }
}

inline read(r, which, c) {
  assert(arena[r].slot[which].tag == number * 4 + (c));
  assert(arena[r].slot[which].unread & only(me));
  arena[r].slot[which].unread = arena[r].slot[which].unread & ~only(me);
  arena[r].slot[which].tag = (arena[r].slot[which].unread -> arena[r].slot[which].tag : 0)
}
inline read_staged(r, c) { read(r, slot_of(entry_of(r, number).where, c), c) }
