// TcpStore and its server: values, deadlines with a silent server, the last will, hostile bytes.
#include <multinode/net/socket.hpp>
#include <multinode/store/hmac.hpp>
#include <multinode/store/store_protocol.hpp>
#include <multinode/store/tcp_store.hpp>
#include <test/support/program_test.hpp>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <list>
#include <system_error>
#include <thread>

using namespace multinode;
using namespace std::chrono_literals;
using multinode::testing::error_text;
using Clock = std::chrono::steady_clock;

namespace {

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Endpoint endpoint_of(const TcpStoreServer& server) { return {"127.0.0.1", server.port()}; }

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A connection that sends arbitrary bytes.
class Raw {
 public:
  explicit Raw(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(port);
    if (!fd_ || ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0)
      throw std::system_error(errno, std::generic_category(), "connect");
  }
  // Sends as much as the connection takes at once; false if the other side closed it.
  bool send(std::string_view bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 || errno == EAGAIN;
  }
  // Exchanges the magic, and returns the hello that proves `token`, not sent yet.
  std::string hello(const protocol::Hello& who = {}) {
    send(protocol::magic);
    std::string greeting(protocol::magic.size() + protocol::nonce_bytes, '\0');
    if (::recv(fd_.get(), greeting.data(), greeting.size(), MSG_WAITALL) != static_cast<ssize_t>(greeting.size()) ||
        !greeting.starts_with(protocol::magic))
      throw std::runtime_error("no greeting of the server");
    return encode(proved(who, greeting.substr(protocol::magic.size())));
  }
  // Reads until `expected` bytes have arrived or none has for a minute; returns their count.
  std::size_t read(std::size_t expected) {
    std::string chunk(64 * 1024, '\0');
    std::size_t came = 0;
    for (std::optional<std::size_t> got; came < expected && (got = read(chunk, 60s)) && *got > 0;) came += *got;
    return came;
  }
  // Reads until the other side closes the connection; nullopt if it is silent for `timeout` before.
  std::optional<std::string> read_to_end(std::chrono::milliseconds timeout) {
    std::string all, chunk(4096, '\0');
    while (const auto got = read(chunk, timeout)) {
      if (*got == 0) return all;
      all.append(chunk, 0, *got);
    }
    return {};
  }

 private:
  // The number of bytes that arrived, 0 at the end of the connection; nullopt after `timeout`.
  std::optional<std::size_t> read(std::string& chunk, std::chrono::milliseconds timeout) {
    pollfd event{fd_.get(), POLLIN, 0};
    if (::poll(&event, 1, static_cast<int>(timeout.count())) <= 0) return {};
    return static_cast<std::size_t>(std::max<ssize_t>(::recv(fd_.get(), chunk.data(), chunk.size(), 0), 0));
  }
  Descriptor fd_;
};

constexpr std::size_t welcome_bytes = 4 + 1 + 32;  // the server's answer to a hello

// The server's side of the handshake, with the secret `token`.
void welcome(int fd, const std::string& token) {
  const std::string challenge(protocol::nonce_bytes, 'c'), greeting = std::string(protocol::magic) + challenge;
  std::string got(protocol::magic.size() + 4, '\0');
  ::send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL);
  if (::recv(fd, got.data(), got.size(), MSG_WAITALL) != static_cast<ssize_t>(got.size())) return;
  std::string frame(protocol::frame_length(got.substr(protocol::magic.size())), '\0');
  if (::recv(fd, frame.data(), frame.size(), MSG_WAITALL) != static_cast<ssize_t>(frame.size())) return;
  const std::string answer =
      protocol::encode(protocol::Status::done, proof_of_server(protocol::parse_hello(frame), token, challenge));
  ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
}
std::string length(std::uint32_t count) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(count >> (8 * i));
  return bytes;
}

// A server that is not a store: it sends `answer` on each connection, with `token` after a handshake, and keeps it
// open.
class FakeServer {
 public:
  // Says more on the connection that came last.
  void send_more(const std::string& more) const {
    EXPECT_EQ(::send(latest_, more.data(), more.size(), MSG_NOSIGNAL), static_cast<ssize_t>(more.size()));
  }
  explicit FakeServer(const std::string& answer, const std::optional<std::string>& token = {})
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0 ||
        ::listen(listener_.get(), 16) < 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) < 0)
      throw std::system_error(errno, std::generic_category(), "listen");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer, token] {
      while (const Descriptor& fd = kept_.emplace_back(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC))) {
        if (!fd) break;
        latest_ = fd.get();
        if (token) welcome(fd.get(), *token);
        EXPECT_EQ(::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL), static_cast<ssize_t>(answer.size()));
      }
    });
  }
  ~FakeServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Endpoint endpoint() const { return {"127.0.0.1", port_}; }

 private:
  Descriptor listener_;
  std::uint16_t port_ = 0;
  std::vector<Descriptor> kept_;
  std::atomic<int> latest_ = -1;
  std::thread thread_;
};

TEST(TcpStoreServer, NamesAddressAndPortWhereItCannotListen) {
  TcpStoreServer server;
  EXPECT_SAYS(error_text<std::system_error>([&] { TcpStoreServer("127.0.0.1", server.port()); }),
              "127.0.0.1:" + std::to_string(server.port()));
  EXPECT_SAYS(error_text<std::system_error>([] { TcpStoreServer("192.0.2.1", 1234); }), "192.0.2.1:1234");
  EXPECT_SAYS(error_text<std::system_error>([] { TcpStoreServer("no such host", 0); }), "no such host");
}

TEST(TcpStoreServer, ItsPortIsFreeAgainAtOnce) {
  std::uint16_t port = 0;
  for (int i = 0; i < 3; ++i) {
    TcpStoreServer server("127.0.0.1", port);
    port = server.port();
    TcpStore store({"127.0.0.1", port}, 60s);
    EXPECT_THROW(store.get("not from the server before", 0ms), StoreTimeout);
    store.set("not from the server before", "");
  }
}

TEST(TcpStoreServer, NothingFromTheNetworkDrivesATerminal) {
  TcpStoreServer server;
  const protocol::Hello hello{.rank = 0, .world_size = 1, .where = "\x1b[2J\n\x9b"},
      another{.rank = 0, .world_size = 1};
  TcpStore first(endpoint_of(server), 60s, hello);
  EXPECT_SAYS(error_text<RankTaken>([&] { TcpStore(endpoint_of(server), 60s, another); }), "taken by ?[2J ?");
}

class Store : public ::testing::Test {
 protected:
  TcpStoreServer server_;
  TcpStore a_{endpoint_of(server_), 100s}, own_{endpoint_of(server_), 100s, {.attempt = "run/0"}},
      b_{endpoint_of(server_), 100s};
};

TEST_F(Store, KeysAndValuesAreBytes) {
  std::string binary(256, '\0'), large(protocol::max_value, 'x');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761u >> 13);
  for (int i = 0; i < 256; ++i) binary[static_cast<std::size_t>(i)] = static_cast<char>(i);
  for (const auto& key : {std::string("\0\n\xff \"", 5), std::string(), std::string(protocol::max_key, 'k')})
    for (const auto& value : {std::string(), binary, large, std::string("again")}) {
      a_.set(key, value);
      EXPECT_TRUE(b_.get(key, 10s) == value) << value.size() << " bytes";
      EXPECT_TRUE(a_.get(key, 0ms) == value) << value.size() << " bytes";
    }
}

TEST_F(Store, AGetWaitsForItsValue) {
  for (const bool compare : {false, true}) {
    const std::string key = compare ? "w" : "late";
    auto got = std::async(std::launch::async, [&] { return b_.get(key, 100s); });
    EXPECT_THROW(a_.get(key, 50ms), StoreTimeout);             // also gives the waiter time to start waiting
    EXPECT_EQ(a_.compare_set(key, "something", "wrong"), "");  // sets nothing, so wakes no client
    EXPECT_EQ(got.wait_for(50ms), std::future_status::timeout);
    const auto start = Clock::now();
    compare ? void(a_.compare_set(key, "", "here")) : a_.set(key, "here");
    EXPECT_EQ(got.get(), "here");
    EXPECT_LT(milliseconds_since(start), 50'000);
  }
}

TEST_F(Store, AGetEndsAtItsDeadlineAndNamesTheKey) {
  for (const auto timeout : {-5'000ms, 0ms, 1ms, 150ms}) {
    const auto start = Clock::now();
    EXPECT_SAYS(error_text<StoreTimeout>([&] { a_.get("absent", timeout); }), "absent");
    EXPECT_GE(milliseconds_since(start), static_cast<double>(timeout.count()));
    EXPECT_LT(milliseconds_since(start), static_cast<double>(timeout.count()) + 20'000);
  }
  a_.set("present", "1");
  EXPECT_EQ(a_.get("present", std::chrono::milliseconds::max()), "1");
}

TEST_F(Store, AddCountsAndRefusesText) {
  EXPECT_EQ(a_.add("n", 5), 5);
  EXPECT_EQ(b_.add("n", -7), -2);
  EXPECT_EQ(b_.get("n", 10s), "-2");
  a_.set("text", "twelve");
  EXPECT_THROW(a_.add("text", 1), StoreRefused);
  EXPECT_EQ(a_.get("text", 0ms), "twelve");
  a_.add("large", std::numeric_limits<std::int64_t>::max());
  EXPECT_THROW(a_.add("large", 1), StoreRefused);
  EXPECT_EQ(a_.add("large", -1), std::numeric_limits<std::int64_t>::max() - 1);
}

TEST_F(Store, CompareSet) {
  EXPECT_EQ(a_.compare_set("c", "something", "x"), "");  // absent is not "something"
  EXPECT_EQ(a_.compare_set("c", "same", "same"), "");
  EXPECT_THROW(a_.get("c", 0ms), StoreTimeout);
  EXPECT_EQ(a_.compare_set("c", "", "first"), "first");
  EXPECT_EQ(b_.compare_set("c", "", "second"), "first");
  EXPECT_EQ(b_.compare_set("c", "first", "third"), "third");
  EXPECT_EQ(a_.get("c", 10s), "third");
  a_.set("e", "");
  EXPECT_EQ(a_.compare_set("e", "", "full"), "full");  // "" means absent or empty
}

TEST_F(Store, TooLargeIsRefusedAndChangesNothing) {
  a_.set("k", "1");
  EXPECT_THROW(a_.set("k", std::string(protocol::max_value + 1, 'x')), StoreRefused);
  EXPECT_THROW(a_.set(std::string(protocol::max_key + 1, 'x'), "1"), StoreRefused);
  EXPECT_THROW(a_.compare_set("k", "1", std::string(protocol::max_value + 1, 'x')), StoreRefused);
  EXPECT_EQ(a_.get("k", 0ms), "1");
}

TEST_F(Store, AttemptsAreKeptApart) {
  a_.set("k", "of none");
  EXPECT_THROW(own_.get("k", 0ms), StoreTimeout);
  EXPECT_EQ(own_.compare_set("k", "", "of a run"), "of a run");
  EXPECT_EQ(a_.get("run/0/k", 0ms), "of a run");
  EXPECT_EQ(a_.get("k", 0ms), "of none");
}

TEST_F(Store, AValueForTwoReadersIsDeletedAfterThem) {
  a_.set_for_readers("k", "v", 2);
  EXPECT_EQ(a_.get("k", 0ms), "v");
  EXPECT_EQ(b_.get("k", 0ms), "v");
  EXPECT_THROW(a_.get("k", 0ms), StoreTimeout);
}

// 100 answers of 1 MiB that the client does not read for a while.
TEST_F(Store, SlowReadersGetTheirAnswers) {
  a_.set("large", std::string(protocol::max_value, 'x'));
  std::list<Raw> slow;
  for (int i = 0; i < 100; ++i) {
    Raw& raw = slow.emplace_back(server_.port());
    raw.send(raw.hello() + encode(protocol::Request{.operation = protocol::Operation::get, .key = "large"}));
  }
  b_.set("others", "are served");
  const std::size_t expected = welcome_bytes + 5 + protocol::max_value;
  for (Raw& each : slow) EXPECT_EQ(each.read(expected), expected);
}

TEST(TcpStore, WaitsForItsServerToAppear) {
  std::uint16_t port = 0;
  { port = TcpStoreServer().port(); }
  auto early = std::async(std::launch::async, [&] { return TcpStore({"127.0.0.1", port}, 100s).get("k", 100s); });
  EXPECT_THROW(TcpStore({"127.0.0.1", port}, 100ms), StoreTimeout);
  TcpStoreServer server("127.0.0.1", port);
  TcpStore(endpoint_of(server), 60s).set("k", "v");
  EXPECT_EQ(early.get(), "v");
}

TEST(TcpStore, NamesTheServerThatIsNotThere) {
  std::uint16_t port = 0;
  { port = TcpStoreServer().port(); }
  const auto start = Clock::now();
  const auto message = error_text<StoreTimeout>([&] { TcpStore({"127.0.0.1", port}, 200ms); });
  EXPECT_LT(milliseconds_since(start), 20'000);
  EXPECT_SAYS(message, "127.0.0.1:" + std::to_string(port));
  EXPECT_SAYS(message, "refused");
  EXPECT_SAYS(error_text<StoreTimeout>([] { TcpStore({"nowhere.invalid", 5}, 300ms); }), "nowhere.invalid:5");
}

// As behind a firewall: the kernel drops requests for a connection while the queue of the listener is full.
TEST(TcpStore, AHostThatDoesNotAnswerIsATimeout) {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const Raw queued(ntohs(address.sin_port));
  const auto start = Clock::now();
  EXPECT_SAYS(error_text<StoreTimeout>([&] {
                TcpStore({"127.0.0.1", ntohs(address.sin_port)}, 3s);
              }),
              "within 3 s: Connection timed out (a firewall");
  EXPECT_LT(milliseconds_since(start), 30'000);
}

TEST(TcpStore, AServerThatFallsSilentIsATimeoutOfEveryOperation) {
  FakeServer mute("");
  EXPECT_SAYS(error_text<StoreTimeout>([&] { TcpStore(mute.endpoint(), 300ms); }), to_string(mute.endpoint()));
  FakeServer silent("", "");
  for (const auto& operation : std::vector<std::function<void(TcpStore&)>>{
           [](TcpStore& s) { s.set("k", "v"); }, [](TcpStore& s) { s.get("k", 200ms); },
           [](TcpStore& s) { s.add("k", 1); }, [](TcpStore& s) { s.compare_set("k", "", "v"); },
           [](TcpStore& s) { s.set_on_disconnect("k", "v"); }, [](TcpStore& s) { s.goodbye(); },
           [](TcpStore& s) { s.set("k", std::string(protocol::max_value, 'x')); }}) {
    TcpStore store(silent.endpoint(), 200ms);
    const auto start = Clock::now();
    EXPECT_SAYS(error_text<StoreTimeout>([&] { operation(store); }), to_string(silent.endpoint()));
    EXPECT_LT(milliseconds_since(start), 20'000);
    // A late answer would be taken for that of the next request.
    EXPECT_THROW(store.set("k", "v"), StoreLost);
  }
}

TEST(TcpStore, TheLimitOfTheConnectionIsNotThatOfRequests) {
  const FakeServer late("", "");
  TcpStore store(late.endpoint(), 100s, {}, 5s);
  const std::jthread answers([&] {
    std::this_thread::sleep_for(6s);
    late.send_more(encode(protocol::Status::done, std::string_view("1")));
  });
  EXPECT_EQ(store.add("k", 1), 1);
}

// Also where another thread receives.
TEST(TcpStore, ALateAnswerIsNotThatOfTheNextRequest) {
  const FakeServer late("", "");
  TcpStore store(late.endpoint(), 100ms);
  store.start_receiving();
  const std::jthread receiver([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) store.receive_event(10ms);
  });
  EXPECT_THROW(store.get("a", 100ms), StoreTimeout);
  late.send_more(encode(protocol::Status::done, std::string_view("value of a")));
  std::this_thread::sleep_for(100ms);  // the answer may arrive before or after the next request
  EXPECT_THROW(store.get("b", 100ms), StoreLost);
}

// mnrun's store serves all starts of a run. 128 ranks of Gloo filled it before start 60.
TEST(TcpStoreServer, ForgetsARunWhenItsLastRankHasLeft) {
  TcpStoreServer server;
  TcpStore other(endpoint_of(server), 60s);
  other.set("run/0", "1");
  other.set("run/00/key", "2");
  const std::string value(protocol::max_value, 'x');
  for (int start = 0; start < 3; ++start) {
    const auto rank = [&](int number) {
      return TcpStore(endpoint_of(server), 60s,
                      {.attempt = "run/" + std::to_string(start), .rank = number, .world_size = 2});
    };
    TcpStore first = rank(0), second = rank(1);
    for (int i = 0; i < 100; ++i) first.set("large " + std::to_string(i), value);
    first.goodbye();
    EXPECT_EQ(second.get("large 99", 60s), value) << "one is still here";
    second.goodbye();
    EXPECT_TRUE(server.wait_for_disconnects(60s, 1));
  }
  TcpStore(endpoint_of(server), 60s, {.rank = 0, .world_size = 1}).goodbye();  // of no attempt
  EXPECT_TRUE(server.wait_for_disconnects(60s, 1));
  EXPECT_EQ(other.get("run/0", 0ms) + other.get("run/00/key", 0ms), "12");
}

TEST(TcpStore, OtherServersAreRecognised) {
  FakeServer web("HTTP/1.1 400 Bad Request\r\n\r\n");
  const auto start = Clock::now();
  EXPECT_SAYS(error_text<StoreLost>([&] { TcpStore(web.endpoint(), 100s); }), "not this store");
  EXPECT_LT(milliseconds_since(start), 50'000);

  for (const auto& answer : {length(0), length(0xffffffff), length(1) + "\x09", length(1) + "\0"}) {
    FakeServer liar(answer + std::string(answer.size() < 5 ? 1 : 0, '\0'), "");
    TcpStore store(liar.endpoint(), 500ms);
    EXPECT_SAYS(error_text<StoreLost>([&] { store.get("k", 500ms); }), "protocol");
  }
}

// Both sides prove that they know the token of the run; a stranger sees proofs, which fit no other connection.
TEST(TcpStore, StrangersAndFalseServersAreFoundOut) {
  const std::string token = random_token();
  TcpStoreServer server("127.0.0.1", 0, {token});
  for (const std::string guess : {"", "job 7/0", "agents of user 0"})
    EXPECT_SAYS(error_text<StoreRefused>([&] { TcpStore(endpoint_of(server), 60s, {.token = guess}); }),
                "has another secret");
  TcpStore member(endpoint_of(server), 60s, {.token = token});
  member.set("k", "v");

  // The hello of a member, overheard and sent again, and one whose fields were changed.
  Raw first(server.port()), second(server.port()), third(server.port());
  const protocol::Hello hello{.token = token, .rank = 3, .world_size = 4};
  const std::string overheard = first.hello(hello);
  std::string changed = third.hello(hello);
  second.hello();
  changed[9] ^= 1;  // the rank, after the length, the operation and an empty attempt
  second.send(overheard);
  third.send(changed);
  for (Raw* raw : {&second, &third}) EXPECT_SAYS(raw->read_to_end(60s).value_or("silence"), "has another secret");

  FakeServer false_server("", "a guess");
  EXPECT_SAYS(error_text<StoreRefused>([&] { TcpStore(false_server.endpoint(), 60s, {.token = token}); }),
              "does not know the secret of this run");
}

TEST(Hmac, TheVectorsOfTheStandards) {
  // FIPS 180-4: the examples of NIST.
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(to_hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // RFC 4231: test cases 1, 6 and 7.
  EXPECT_EQ(to_hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  const std::string long_key(131, '\xaa');
  EXPECT_EQ(to_hex(hmac_sha256(long_key, "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(to_hex(hmac_sha256(long_key,
                               "This is a test using a larger than block-size key and a larger than block-size data. "
                               "The key needs to be hashed before being used by the HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(TcpStore, NamesTheServerItLost) {
  auto server = std::make_unique<TcpStoreServer>();
  const auto endpoint = endpoint_of(*server);
  TcpStore store(endpoint, 60s), waiter(endpoint, 60s);
  std::string lost;
  std::thread waiting([&] { lost = error_text<StoreLost>([&] { waiter.get("k", 20s); }); });
  EXPECT_THROW(store.get("k", 50ms), StoreTimeout);
  server.reset();
  waiting.join();
  EXPECT_SAYS(lost, to_string(endpoint));
  EXPECT_SAYS(error_text<StoreLost>([&] { store.set("k", "v"); }), to_string(endpoint));
  EXPECT_SAYS(error_text<StoreLost>([&] { store.set("k", "v"); }), to_string(endpoint));
}

using LastWill = Store;

TEST_F(LastWill, IsExecutedOnlyWithoutGoodbye) {
  {
    TcpStore polite(endpoint_of(server_), 60s);
    polite.set_on_disconnect("polite", "gone");
    polite.goodbye();
    EXPECT_THROW(polite.set("k", "v"), StoreLost);
  }
  {
    TcpStore rude(endpoint_of(server_), 60s);
    rude.set_on_disconnect("first", "gone");
    rude.set_on_disconnect("rude", "gone");  // replaces the first
  }
  EXPECT_EQ(a_.get("rude", 60s), "gone");
  EXPECT_THROW(a_.get("polite", 0ms), StoreTimeout);
  EXPECT_THROW(a_.get("first", 0ms), StoreTimeout);
}

TEST_F(LastWill, DoesNotOverwriteAVerdict) {
  a_.set("verdict", "rank 2");
  a_.set("unset", "");
  {
    TcpStore one(endpoint_of(server_), 60s), other(endpoint_of(server_), 60s);
    one.set_on_disconnect("verdict", "rank 1");
    other.set_on_disconnect("unset", "rank 3");
  }
  EXPECT_TRUE(server_.wait_for_disconnects(60s, 3));
  EXPECT_EQ(a_.get("unset", 0ms), "rank 3");
  EXPECT_EQ(a_.get("verdict", 0ms), "rank 2");
}

TEST(Linger, WaitsForMembersNotForStrangers) {
  TcpStoreServer server;
  EXPECT_TRUE(server.wait_for_disconnects(0ms));
  Raw stranger(server.port());
  auto a = std::make_unique<TcpStore>(endpoint_of(server), 60s),
       b = std::make_unique<TcpStore>(endpoint_of(server), 60s);
  EXPECT_FALSE(server.wait_for_disconnects(20ms));
  a->goodbye();
  EXPECT_FALSE(server.wait_for_disconnects(20ms));
  const auto start = Clock::now();
  std::thread leaver([&] { b.reset(); });
  EXPECT_TRUE(server.wait_for_disconnects(100s));
  leaver.join();
  EXPECT_LT(milliseconds_since(start), 50'000);
}

TEST_F(Store, AWrongLengthEndsTheConnection) {
  Raw browser(server_.port());
  browser.send("G");  // the first byte is enough
  EXPECT_EQ(browser.read_to_end(60s), "");
  Raw talker(server_.port());  // a hello is at most 8 KiB
  talker.hello();
  talker.send(length(9'000));
  EXPECT_EQ(talker.read_to_end(60s), "");
  for (const std::string& opening :
       {length(0xffffffff), length(0), length(100) + "\x01" + length(0xffffffff) + std::string(100, 'x')}) {
    Raw raw(server_.port());
    raw.send(raw.hello() + opening);
    const auto answer = raw.read_to_end(60s);
    ASSERT_TRUE(answer) << "it does not close the connection";
    EXPECT_EQ(answer->size(), welcome_bytes);
  }
}

TEST_F(Store, AStrangerHasFiveSecondsForItsHello) {
  std::list<Raw> strangers, members;
  for (int i = 0; i < 200; ++i) {
    strangers.emplace_back(server_.port());
    Raw& member = members.emplace_back(server_.port());
    member.send(member.hello());
  }
  a_.set("k", "v");
  EXPECT_TRUE(strangers.back().read_to_end(60s)) << "a stranger was not dropped after some seconds";
  for (Raw& member : members) EXPECT_EQ(member.read(welcome_bytes), welcome_bytes);
  EXPECT_FALSE(members.front().read_to_end(50ms)) << "a member was dropped";
}

// Another process's connections use up the descriptors of this one: members and the process itself keep theirs.
TEST(Strangers, LeaveDescriptorsToOthers) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{128, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  {
    TcpStoreServer server;
    const std::string connect = "exec {fd}<>/dev/tcp/127.0.0.1/" + std::to_string(server.port()) + " || exit 1; ";
    multinode::testing::Process crowd(
        {"bash", "-c",
         "ulimit -Sn hard; for ((i = 0; i < 500; ++i)); do " + connect + "done; echo ready; sleep 60; :"});
    EXPECT_TRUE(crowd.wait_for("ready"));
    TcpStore store(endpoint_of(server), 60s);
    store.set("k", "v");
    EXPECT_TRUE(std::ifstream("/proc/self/statm").is_open());
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(Store, TheBytesThatItStoresAreBounded) {
  a_.set_on_disconnect("will", "kept");
  a_.set("before", "1");
  const std::string value(protocol::max_value, 'x');
  std::string refusal;
  for (int i = 0; i < 200 && refusal.empty(); ++i) try {
      a_.set("large " + std::to_string(i), value);
    } catch (const StoreRefused& error) {
      refusal = error.what();
    }
  EXPECT_SAYS(refusal, "the store is full");
  EXPECT_SAYS(refusal, to_string(endpoint_of(server_)));
  EXPECT_EQ(b_.get("before", 0ms), "1");
  b_.set("before", "2");
  EXPECT_THROW(b_.set_on_disconnect("w", value), StoreRefused);
  EXPECT_THROW(b_.compare_set("new", "", value), StoreRefused);
  b_.set("large 0", "");  // makes room
  b_.set("new", "1");
}

TEST(Protocol, RequestsAreParsedAsEncoded) {
  using namespace protocol;
  const std::vector<Request> requests{
      {Operation::set, {"key"}, "value"},
      {Operation::set, {""}, ""},
      {.operation = Operation::get, .key = "key", .timeout_ms = 123456789012},
      {.operation = Operation::add, .key = "key", .amount = -5},
      {Operation::compare_set, {"key"}, "desired", "expected"},
      {Operation::will, {"key"}, "value"},
      {.operation = Operation::set, .key = "key", .value = "value", .readers = 3},
      {.operation = Operation::beat, .status = 1, .progress = {7, 3, 2, 1500, Progress::Wait::long_one, "MPI_Send"}},
      {.operation = Operation::fail, .value = "out of memory", .status = 77},
      {.operation = Operation::goodbye}};
  std::string stream;
  for (const auto& request : requests) stream += encode(request);
  FrameReader whole, bytewise;
  whole.append(stream);
  for (const auto& request : requests) {
    const auto frame = whole.next();
    ASSERT_TRUE(frame);
    EXPECT_EQ(parse_request(*frame), request);
    // Neither shorter nor longer.
    for (std::size_t n = 0; n < frame->size(); ++n) EXPECT_THROW(parse_request(frame->substr(0, n)), Violation);
    EXPECT_THROW(parse_request(std::string(*frame) + "x"), Violation);
  }
  EXPECT_FALSE(whole.next());
  std::size_t found = 0;
  for (const char byte : stream) {
    bytewise.append({&byte, 1});
    while (const auto frame = bytewise.next()) EXPECT_EQ(parse_request(*frame), requests.at(found++));
  }
  EXPECT_EQ(found, requests.size());
}

}  // namespace
