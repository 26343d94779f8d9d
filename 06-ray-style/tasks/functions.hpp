// functions.hpp: all that a job library needs. It is a shared object of the job folder which defines
// register_functions:
//
//   void register_functions(tasks::Functions& functions) {
//     functions.add("add", [](double a, double b) { return a + b; });
//   }
//
// Arguments and results go by value: whatever nlohmann::json converts. A task must be repeatable: where a runner dies,
// its unfinished tasks are run once more.
#pragma once

#include <multinode/text.hpp>

#include <nlohmann/json.hpp>

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tasks {

// json as a T; unlike json.get<T>(), no number is cut to fit. Throws std::exception that says what does not fit.
template <class T>
T convert(const nlohmann::json& json) {
  if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    const bool fits = json.is_number_unsigned()
                          ? std::in_range<T>(json.get<std::uint64_t>())
                          : json.is_number_integer() && std::in_range<T>(json.get<std::int64_t>());
    if (!fits)
      throw std::invalid_argument(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                                  " is no integer of " + std::to_string(8 * sizeof(T)) + " bits");
  }
  return json.get<T>();
}

class Functions {
 public:
  // Throws std::logic_error for a name that is there already.
  template <class Callable>
  void add(const std::string& name, Callable function) {
    if (!functions_.emplace(name, wrap(std::function(std::move(function)))).second)
      throw std::logic_error("there are two functions \"" + name + "\"");
  }

  // Calls function `name` with the elements of the array `arguments`. Throws what the function throws, and
  // std::invalid_argument for an unknown function and for arguments that do not fit.
  nlohmann::json call(const std::string& name, const nlohmann::json& arguments) const {
    const auto found = functions_.find(name);
    if (found == functions_.end())
      throw std::invalid_argument("the library has no such function; it has: " +
                                  multinode::join(functions_, ", ", [](const auto& named) { return named.first; }));
    return found->second(arguments);
  }

 private:
  using Wrapped = std::function<nlohmann::json(const nlohmann::json&)>;

  template <class Result, class... Arguments>
  static Wrapped wrap(std::function<Result(Arguments...)> function) {
    return [function = std::move(function)](const nlohmann::json& arguments) {
      if (!arguments.is_array()) throw std::invalid_argument("the arguments are no array");
      if (arguments.size() != sizeof...(Arguments))
        throw std::invalid_argument("it takes " + std::to_string(sizeof...(Arguments)) + " arguments, not " +
                                    std::to_string(arguments.size()));
      auto values = converted<std::remove_cvref_t<Arguments>...>(arguments, std::index_sequence_for<Arguments...>());
      if constexpr (std::is_void_v<Result>) {
        std::apply(function, std::move(values));
        return nlohmann::json();
      } else {
        return nlohmann::json(std::apply(function, std::move(values)));
      }
    };
  }

  template <class... Values, std::size_t... indices>
  static std::tuple<Values...> converted(const nlohmann::json& arguments, std::index_sequence<indices...>) {
    return {argument<Values>(arguments, indices)...};
  }

  template <class T>
  static T argument(const nlohmann::json& arguments, std::size_t index) {
    try {
      return convert<T>(arguments[index]);
    } catch (const std::exception& e) {
      throw std::invalid_argument("argument " + std::to_string(index + 1) + ": " + e.what());
    }
  }

  std::map<std::string, Wrapped, std::less<>> functions_;
};

}  // namespace tasks

// Defined by the library, called once by each runner.
extern "C" void register_functions(tasks::Functions& functions);
