// The limits of this machine, measured with the threads and instructions of the kernels. A kernel's
// speed as a share of the limit shows how much faster it could become.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "thread_pool.h"

namespace heddle {

// Rates are the best of several passes that take `seconds` together.

// Bytes per second at which all threads together read a buffer of `bytes` bytes. A buffer far
// larger than the caches gives the memory bandwidth. Throws std::bad_alloc.
double read_rate(ThreadPool& pool, int64_t bytes, double seconds);

// Integer multiply-adds per second of all threads together, from registers; see integer_peak.h.
double multiply_rate(ThreadPool& pool, const Kernels& kernels, double seconds);

// Seconds that it costs all threads to wait for one another between two instructions of a task: the
// time of many short instructions without the time of the same items in one instruction.
double barrier_seconds(ThreadPool& pool, const Kernels& kernels);

}  // namespace heddle
