/* How a rank falls asleep and is woken: two ranks wait for the flag of a third, again and again.
 *
 * The ringer stores its flag and then looks whether anybody sleeps. It has no fence in between, so
 * the flag may still be on its way (`is_delayed`) when it looks. A sleeper counts itself in, forces
 * a barrier on the ringer, which brings a delayed flag out, looks at the flag once more, and sleeps
 * only if the bell is still as it had heard it. The engine's sleeps also end by the clock; here they
 * do not, so that a lost bell is found as ranks that wait forever. */

#define me _pid

bit flag;        /* changes from call to call */
bit is_delayed;  /* a change of the flag that others do not see yet */
byte sleepers, bell, acknowledged;
bit is_asleep[2];

inline bring_out() {
  d_step {
    if
    :: is_delayed -> flag = 1 - flag; is_delayed = false
    :: else
    fi
  }
}

active [2] proctype Sleeper() {
  byte heard;
  bit wanted = 1;
  do
  :: flag == wanted -> wanted = 1 - wanted; acknowledged++
  :: else ->
#ifndef HEAR_LATE
     heard = bell;
#endif
     sleepers++;
#ifndef NO_BARRIER
     bring_out();
#endif
     if
#ifndef NO_LAST_LOOK
     :: flag == wanted
#endif
     :: else ->
#ifdef HEAR_LATE
        heard = bell;
#endif
        is_asleep[me] = bell == heard; /* the kernel compares and puts to sleep in one step */
        !is_asleep[me]
     fi;
     sleepers--
  od
}

active proctype Ringer() {
  do
  :: is_delayed = true;
     if
     :: sleepers != 0 ->
        bring_out(); /* ringing is a release */
        bell = (bell + 1) % 4;
        d_step { is_asleep[0] = false; is_asleep[1] = false }
     :: else
     fi;
     atomic { acknowledged == 2 -> acknowledged = 0 }
  od
}

active proctype Memory() {
  do
  :: is_delayed -> bring_out()
  od
}
