#include "kernels.cuh"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace model {
namespace {

template <class T>  // double, float, __nv_bfloat16
constexpr cudaDataType_t cuda_type = std::is_same_v<T, double>  ? CUDA_R_64F
                                     : std::is_same_v<T, float> ? CUDA_R_32F
                                                                : CUDA_R_16BF;

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what NVIDIA recommends for Hopper; others need less

}  // namespace

void check(cublasStatus_t code, multinode::source_location at) {
  if (code != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(multinode::place(at) + "cuBLAS: " + cublasGetStatusString(code));
}

Cuda::Cuda(bool tf32) : tf32_(tf32), workspace_(workspace_bytes) {
  check(cublasCreate(&blas_));
  check(cublasSetStream(blas_, stream()));  // first: it takes the workspace away
  check(cublasSetWorkspace(blas_, workspace_.data(), workspace_bytes));
}

Cuda::~Cuda() {
  if (blas_) cublasDestroy(blas_);
}

// cuBLAS is column-major: it sees the transposes of all three, and so gets b first.
template <class T, class U>
void Cuda::product(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const U* a,
                   const U* b, T keep, T* c) {
  if (rows == 0 || columns == 0) return;
  if (inner == 0) {
    if (keep == 0) multinode::check(cudaMemsetAsync(c, 0, rows * columns * sizeof(T), stream()));
    return;
  }
  const auto number = [](std::size_t n) { return static_cast<int>(n); };
  const bool first = transpose == Transpose::first, second = transpose == Transpose::second;
  const T one = 1;
  check(cublasGemmEx(blas_, second ? CUBLAS_OP_T : CUBLAS_OP_N, first ? CUBLAS_OP_T : CUBLAS_OP_N, number(columns),
                     number(rows), number(inner), &one, b, cuda_type<U>, number(second ? inner : columns), a,
                     cuda_type<U>, number(first ? rows : inner), &keep, c, cuda_type<T>, number(columns),
                     std::is_same_v<T, double>           ? CUBLAS_COMPUTE_64F
                     : std::is_same_v<U, float> && tf32_ ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                         : CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT));
}

template <class T, class U>
PerceptronGpu<T, U>::Stage::Stage(const PerceptronGpu& gpu)
    : inputs(gpu.inputs_.size()),
      targets(gpu.targets_.size()),
      labels(gpu.labels_.size()),
      samples(gpu.samples_.size()),
      settings(1) {}

template <class T, class U>
PerceptronGpu<T, U>::PerceptronGpu(Architecture architecture, std::size_t capacity)
    : PerceptronOn<T, U, Cuda>(std::move(architecture), capacity),
      stages_{Stage(*this), Stage(*this)},
      host_totals_(1),
      numbers_(64),
      host_numbers_(numbers_.size()),
      wait_([](cudaEvent_t event) { multinode::check(cudaEventSynchronize(event)); }) {}

template <class T, class U>
std::vector<T> PerceptronGpu<T, U>::copy(std::span<T> memory) {
  std::vector<T> host(memory.size());
  multinode::check(cudaMemcpyAsync(host.data(), memory.data(), memory.size_bytes(), cudaMemcpyDeviceToHost, stream()));
  wait();
  return this->flat_.joined(host);
}

template <class T, class U>
void PerceptronGpu<T, U>::scale(std::span<T> elements, T factor) {
  this->device_.each(elements.size(), Scale<T>{elements.data(), factor});
}

template <class T, class U>
void PerceptronGpu<T, U>::initialize(std::uint64_t seed) {
  Perceptron<T> there(this->architecture_, 0);  // the host's numbers, so that both begin alike
  there.initialize(seed);
  for (std::size_t i = 0; i < this->parameters().size(); ++i)
    multinode::check(cudaMemcpyAsync(this->parameter(i).data(), there.parameter(i).data(),
                                     this->parameter(i).size_bytes(), cudaMemcpyHostToDevice, stream()));
  this->parameters_changed();
  wait();  // before the host's copy goes
}

template <class T, class U>
void PerceptronGpu<T, U>::load(const data::Batch<T>& batch, const Dropout& dropout, double learning_rate) {
  require_fit(this->architecture_, this->samples_.size(), batch, dropout);
  this->batch_ = batch.size();
  Stage& stage = stages_[loads_++ % stages_.size()];
  if (loads_ > stages_.size()) wait_(stage.copied.get());
  const auto copy = [this](const auto& from, auto& pinned, auto& device) {
    if (from.empty()) return;
    std::copy(from.begin(), from.end(), pinned.data());
    device.copy_from(pinned.span().first(from.size()), stream());
  };
  copy(batch.inputs, stage.inputs, this->inputs_);
  if (this->by_label())
    copy(batch.labels, stage.labels, this->labels_);
  else
    copy(batch.targets, stage.targets, this->targets_);
  copy(batch.samples, stage.samples, this->samples_);
  *stage.settings.data() = settings_of<T>(dropout, learning_rate);
  this->settings_.copy_from(stage.settings.span(), stream());
  stage.copied.record(stream());
}

template <class T, class U>
Totals PerceptronGpu<T, U>::take_totals() {
  this->totals_.copy_to(host_totals_.span(), stream());
  multinode::check(cudaMemsetAsync(this->totals_.data(), 0, sizeof(Totals), stream()));
  wait();
  return *host_totals_.data();
}

template <class T, class U>
void PerceptronGpu<T, U>::sum(multinode::Communicator& communicator, std::span<double> numbers) {
  while (!numbers.empty()) {
    const std::span<double> some = numbers.first(std::min(numbers.size(), numbers_.size()));
    const std::span<double> here = host_numbers_.span().first(some.size());
    std::ranges::copy(some, here.begin());
    numbers_.copy_from(here, stream());
    communicator.all_reduce(numbers_.span().first(some.size()));
    numbers_.copy_to(here, stream());
    communicator.synchronize();  // within the deadline
    std::ranges::copy(here, some.begin());
    numbers = numbers.subspan(some.size());
  }
}

HostCopies::HostCopies(std::vector<ddp::NamedBlock> there, cudaStream_t stream)
    : there_(std::move(there)), here_(there_), stream_(stream) {
  for (ddp::NamedBlock& block : here_) block.block.data = room_.emplace_back(block.block.bytes()).data();
}

void HostCopies::copy(const std::vector<ddp::NamedBlock>& from, const std::vector<ddp::NamedBlock>& to,
                      cudaMemcpyKind kind) const {
  for (std::size_t i = 0; i < from.size(); ++i)
    multinode::check(cudaMemcpyAsync(to[i].block.data, from[i].block.data, from[i].block.bytes(), kind, stream_));
}

StepGraphs::~StepGraphs() {
  for (const auto& [global_batch, graph] : graphs_)
    if (graph) cudaGraphExecDestroy(graph);
}

void StepGraphs::run(std::size_t global_batch, cudaStream_t stream, const std::function<void()>& step) {
  const auto [at, first] = graphs_.try_emplace(global_batch, nullptr);
  if (first) return step();
  if (!at->second) {
    cudaGraph_t graph = nullptr;
    // Thread-local: what other threads do with the GPU meanwhile is no part of it.
    multinode::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      step();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    multinode::check(cudaStreamEndCapture(stream, &graph));
    const cudaError_t code = cudaGraphInstantiateWithFlags(&at->second, graph, 0);
    cudaGraphDestroy(graph);
    multinode::check(code);
  }
  multinode::check(cudaGraphLaunch(at->second, stream));
}

template class PerceptronOn<float, float, Cuda>;
template class PerceptronOn<double, double, Cuda>;
template class PerceptronOn<float, __nv_bfloat16, Cuda>;
template class PerceptronGpu<float>;
template class PerceptronGpu<double>;
template class PerceptronGpu<float, __nv_bfloat16>;

}  // namespace model
