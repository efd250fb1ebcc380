// One thread of a process that looks after its groups on GPUs every few milliseconds: a kernel that
// waits for a peer cannot see that the peer's process has died.
#pragma once

namespace dda {

class GpuGroup;

// From now on group->look() is called, until unwatch returns.
void watch_over(GpuGroup* group);
void unwatch(GpuGroup* group);

}  // namespace dda
