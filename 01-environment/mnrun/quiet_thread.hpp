// quiet_thread.hpp: a thread that no signal is delivered to: they are the event loop's.
#pragma once

#include <csignal>
#include <thread>

namespace mnrun {

template <class Function>
std::thread quiet_thread(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace mnrun
