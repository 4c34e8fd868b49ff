// What g++'s thread and undefined-behaviour sanitizers call: accesses for the checker, and what cannot go on.
#include "../include/emulator.h"

using namespace emulator;

#define CALLER __builtin_return_address(0)
#define HOOK extern "C" __attribute__((visibility("hidden"))) void

#define ACCESS(bytes)                                                                                        \
  HOOK __tsan_read##bytes(void *address) { access(address, bytes, Access::read, CALLER); }                   \
  HOOK __tsan_write##bytes(void *address) { access(address, bytes, Access::write, CALLER); }                   \
  HOOK __tsan_unaligned_read##bytes(void *address) { access(address, bytes, Access::read, CALLER); }         \
  HOOK __tsan_unaligned_write##bytes(void *address) { access(address, bytes, Access::write, CALLER); }         \
  HOOK __tsan_volatile_read##bytes(void *address) { access(address, bytes, Access::read, CALLER); }          \
  HOOK __tsan_volatile_write##bytes(void *address) { access(address, bytes, Access::write, CALLER); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

HOOK __tsan_read_range(void *address, size_t bytes) { access(address, bytes, Access::read, CALLER); }
HOOK __tsan_write_range(void *address, size_t bytes) { access(address, bytes, Access::write, CALLER); }
HOOK __tsan_init() {}
HOOK __tsan_func_entry(void *) {}
HOOK __tsan_func_exit() {}

namespace {

struct SourceLocation {
  const char *file;
  uint32_t line, column;
  Site site() const { return {file, int(line)}; }
};

struct TypeMismatch {
  SourceLocation where;
  const void *type;
  unsigned char log_alignment, kind;
};

}  // namespace

HOOK __ubsan_handle_type_mismatch_v1(TypeMismatch *data, uintptr_t address) {
  if (!thread) return;
  unsigned alignment = 1u << data->log_alignment;
  fail(data->where.site(), "misaligned access: %zu bytes past a multiple of %u", size_t(address % alignment),
       alignment);
}
HOOK __ubsan_handle_out_of_bounds_abort(SourceLocation *where, uintptr_t index) {
  fail(where->site(), "index %td is outside the array", ptrdiff_t(index));
}
HOOK __ubsan_handle_divrem_overflow_abort(SourceLocation *where, uintptr_t, uintptr_t) {
  fail(where->site(), "integer division by zero");
}
#define OVERFLOW(name, sign)                                                             \
  HOOK __ubsan_handle_##name##_overflow_abort(SourceLocation *where, uintptr_t, uintptr_t) { \
    fail(where->site(), "overflow of a signed integer in " sign);                        \
  }
OVERFLOW(add, "+")
OVERFLOW(sub, "-")
OVERFLOW(mul, "*")
HOOK __ubsan_handle_negate_overflow_abort(SourceLocation *where, uintptr_t) {
  fail(where->site(), "overflow of a signed integer in unary -");
}
