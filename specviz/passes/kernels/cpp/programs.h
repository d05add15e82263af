// A compiled program, opened from C++ on weights that stay where they are, and a text that its passes read.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

// Its name is no secret of one file: what one opens runs in another.
namespace programs {

struct Failed {};

inline void check(AOTITorchError error) {
  if (error) throw Failed();
}

// A contiguous tensor's memory, which is the caller's.
struct Memory {
  void* data;
  int32_t dtype;
  int64_t dimensions;
  int64_t sizes[4];
};

// Tensors of torch's that are ours to free.
struct Tensors : std::vector<AtenTensorHandle> {
  Tensors() = default;
  Tensors(Tensors&&) = default;
  ~Tensors() {
    for (AtenTensorHandle each : *this)
      if (each) aoti_torch_delete_tensor_object(each);
  }

  AtenTensorHandle add(const Memory& memory) {
    std::vector<int64_t> strides(memory.dimensions, 1);
    for (int64_t i = memory.dimensions - 1; i > 0; i--) strides[i - 1] = strides[i] * memory.sizes[i];
    push_back(nullptr);
    check(aoti_torch_create_tensor_from_blob(
        memory.data, memory.dimensions, memory.sizes, strides.data(), 0, memory.dtype, aoti_torch_device_type_cpu(), 0,
        &back()));
    return back();
  }

  void add_again(AtenTensorHandle tensor) {
    push_back(nullptr);
    check(aoti_torch_new_tensor_handle(tensor, &back()));
  }
};

// A function of AOTInductor's C interface to programs (aoti_runtime/interface.h), of which torch has had several.
template <typename... Arguments>
struct Function {
  AOTITorchError (*place)(Arguments...);

  Function(void* library, const char* name) : place(nullptr) {
    void* found = library ? dlsym(library, name) : nullptr;
    if (!found) throw Failed();
    std::memcpy(&place, &found, sizeof place);
  }

  void operator()(Arguments... arguments) const { check(place(arguments...)); }
};

// A weight by its name within the program.
struct Constant {
  const char* name;
  AtenTensorHandle handle;
};

using Handle = void*;
using Named = Function<Handle, size_t, const char**>;

// Keys and values of each layer in turn, in memory that stays where it is.
struct Text {
  Tensors rows;
  int64_t room;  // places in each of them; two, of which only the first is used, where a program keeps none

  Text(int64_t count, const Memory* tensors) : room(count ? tensors[0].sizes[2] : 2) {
    for (int64_t i = 0; i < count; i++) rows.add(tensors[i]);
  }
};

// A program, opened on weights that stay where they are.
struct Program {
  void* library;  // stays loaded, as torch leaves it
  Function<Handle, AtenTensorHandle*, size_t, AtenTensorHandle*, size_t, void*, void*> run;
  Function<Handle> close;
  Handle handle = nullptr;
  size_t outputs = 0;  // logits, and states
  Tensors weights;

  // file: its shared library. by_name: the weights that it may ask for.
  Program(const char* file, const std::map<std::string, Memory>& by_name)
      : library(dlopen(file, RTLD_NOW)),
        run(library, "AOTInductorModelContainerRun"),
        close(library, "AOTInductorModelContainerDelete") {
    const Function<Handle*, size_t, const char*, const char*> create(
        library, "AOTInductorModelContainerCreateWithDevice");
    const Function<Handle, size_t*> count_outputs(library, "AOTInductorModelContainerGetNumOutputs");
    const Function<Handle, size_t*> count_constants(library, "AOTInductorModelContainerGetNumConstants");
    const Named name(library, "AOTInductorModelContainerGetConstantName");
    const Named original_name(library, "AOTInductorModelContainerGetConstantOriginalFQN");
    const Function<Handle, const Constant*, size_t, bool, bool> use(
        library, "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs");
    create(&handle, 1, "cpu", nullptr);
    count_outputs(handle, &outputs);
    size_t count = 0;
    count_constants(handle, &count);
    std::vector<Constant> constants(count);
    for (size_t i = 0; i < count; i++) {
      const char* original = nullptr;
      name(handle, i, &constants[i].name);
      original_name(handle, i, &original);
      if (!by_name.count(original)) throw Failed();
      constants[i].handle = weights.add(by_name.at(original));
    }
    use(handle, constants.data(), count, false, true);
  }

  ~Program() { close(handle); }

  // One pass over `count` tokens at the places from `start` on, each with its position and its row of `states`, if there are
  // any. visible: [count][room]. Returns logits [count][vocab] and, if the program has any, states.
  Tensors pass(
      const Text& text, int64_t* token_ids, int64_t count, int64_t start, std::vector<int64_t>& positions,
      std::vector<uint8_t>& visible, const Memory* states = nullptr) const {
    std::vector<int64_t> places(count);
    for (int64_t i = 0; i < count; i++) places[i] = start + i;
    Tensors inputs, made;
    inputs.add({token_ids, aoti_torch_dtype_int64(), 1, {count}});
    inputs.add({positions.data(), aoti_torch_dtype_int64(), 1, {count}});
    inputs.add({places.data(), aoti_torch_dtype_int64(), 1, {count}});
    inputs.add({visible.data(), aoti_torch_dtype_bool(), 2, {count, text.room}});
    if (states) inputs.add(*states);
    for (AtenTensorHandle each : text.rows) inputs.add_again(each);
    made.resize(outputs);
    std::vector<AtenTensorHandle> given(inputs);
    inputs.clear();  // the program takes them over
    run(handle, given.data(), given.size(), made.data(), made.size(), nullptr, nullptr);
    return made;
  }
};

// A tensor's rows, [..][width].
struct Rows {
  const char* data;
  int64_t width;
  int32_t dtype;

  explicit Rows(AtenTensorHandle tensor) {
    void* place = nullptr;
    check(aoti_torch_get_size(tensor, 1, &width));
    check(aoti_torch_get_dtype(tensor, &dtype));
    check(aoti_torch_get_data_ptr(tensor, &place));
    data = static_cast<const char*>(place);
  }

  int64_t bytes() const { return width * aoti_torch_dtype_element_size(dtype); }
};

}  // namespace programs

using namespace programs;
