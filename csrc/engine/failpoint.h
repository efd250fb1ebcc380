// Named points in the protocol at which a test build kills, stops or delays a rank.
//
// DDA_FAILPOINT=name:rank:hit:action makes rank `rank` do `action` (kill, stop, exit, or a number
// of milliseconds to sleep) when it comes to the point `name` for the `hit`-th time. Without
// DDA_FAILPOINTS at build time nothing is compiled in.
#pragma once

#if defined(DDA_FAILPOINTS)
namespace dda {
void reach_failpoint(const char* name);
void set_failpoint_rank(int rank);
}  // namespace dda
#define DDA_FAILPOINT_AT(name) ::dda::reach_failpoint(name)
#else
#define DDA_FAILPOINT_AT(name) static_cast<void>(0)
#endif
