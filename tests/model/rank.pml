/* A rank: the part of a call that all kinds have in common. Included last; the model that includes
 * it says which calls there are, choose(call), and what follows the entry, transfer(). */

active [RANKS] proctype Rank() {
  byte number, call, where, c, p, base, reached;
  bit differs, is_mixed, is_odd, has_refused;

  do
  :: atomic {
       begin();
       if
       :: has_to_wait -> wait_entries(previous)
       :: else
       fi;
       has_refused = call == REFUSED;
       /* A call of one chunk stages it before it enters; others enter empty. */
       if
       :: call != REFUSED && chunks == 1 && writes -> stage(0)
       :: else
       fi;
       publish_entry()
     }
     if
     :: call == REFUSED
     :: else ->
        atomic {
          wait_entries(number);
          assert(differs == is_mixed)
        }
        if
        :: differs -> drop()
        :: else -> transfer()
        fi
     fi;
     end()
  od;
gone:
  skip
}

#ifdef ABORT_UNHEARD
#define HEARERS 1
#else
#define HEARERS RANKS
#endif

#ifdef TROUBLE
/* A rank dies, or the group is aborted: the word reaches one rank after the other. */
active proctype Trouble() {
  byte r;
  if
  :: choose_rank(dead)
  :: for (r : 0 .. HEARERS - 1) { arena[r].revoked = true }
  fi
}
#endif
