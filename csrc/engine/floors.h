// What this machine can do at best, measured with nothing of dda in the way: the yardsticks by
// which the engine's times are judged.
#pragma once

namespace dda {

struct Floors {
  double flag_us;      // one core's store until another core sees it
  double read_64k_us;  // reading 64 KiB that another core has just written
  double add_64m_us;   // one core adding two float32 arrays of 64 MiB into a third
};

// Runs for about a second on two cores.
Floors measure_floors();

}  // namespace dda
