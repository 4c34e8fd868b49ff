// Makes `__global__` functions callable by address: EMULATOR_EXPORT(name), which stands after the kernel's text.
#pragma once
#include <type_traits>
#include <utility>

namespace emulator {

// One letter and a size for each parameter: pointer, constant (pointer), integer, floating, other; "c4 i8".
template <class T>
inline char *describe(char *text) {
  char kind = 'o';
  size_t size = sizeof(T);
  if constexpr (std::is_pointer_v<T>) {
    using Pointee = std::remove_pointer_t<T>;
    kind = std::is_const_v<Pointee> ? 'c' : 'p';
    if constexpr (std::is_void_v<Pointee>) size = 1;
    else size = sizeof(Pointee);
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    kind = 'i';
  } else if constexpr (std::is_floating_point_v<T>) {
    kind = 'f';
  }
  return text + __builtin_sprintf(text, "%c%zu ", kind, size);
}

template <class... Parameters>
inline void describe_all(void (*)(Parameters...), char *text) {
  *text = 0;
  ((text = describe<Parameters>(text)), ...);
}

template <class... Parameters, size_t... I>
EMULATOR_UNCHECKED inline void call(void (*kernel)(Parameters...), void **arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cv_t<Parameters> *>(arguments[I])...);
}

template <class... Parameters>
EMULATOR_UNCHECKED inline void call(void (*kernel)(Parameters...), void **arguments) {
  call(kernel, arguments, std::index_sequence_for<Parameters...>());
}

}  // namespace emulator

#pragma GCC visibility push(hidden)
extern "C" char __ehdr_start[], __bss_start[], _end[];
#pragma GCC visibility pop

// Where the library's image begins, and where its zero-initialised data, which is shared memory, begins and ends.
extern "C" __attribute__((visibility("default"), used)) void emulator_layout(char **layout) {
  layout[0] = __ehdr_start;
  layout[1] = __bss_start;
  layout[2] = ::emulator::emulator_dynamic_shared > __bss_start ? ::emulator::emulator_dynamic_shared : _end;
}

#define EMULATOR_EXPORT(name) EMULATOR_EXPORT_AS(name)
#define EMULATOR_EXPORT_AS(name)                                                                       \
  extern "C" EMULATOR_UNCHECKED void emulator_call_##name(void **arguments) {                           \
    ::emulator::call(name, arguments);                                                                  \
  }                                                                                                     \
  extern "C" EMULATOR_UNCHECKED void emulator_describe_##name(char *text) { ::emulator::describe_all(name, text); }
