#include "cluster/token.hpp"

#include <multinode/check.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace token_test {

class TokenFile : public testing::Test {
 protected:
  std::string refusal() {
    try {
      cluster::read_token(file_);
      return "";
    } catch (const multinode::UsageError& e) {
      return e.what();
    }
  }
  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(file_) << text;
    chmod(file_.c_str(), mode);
  }

  const multinode::testing::TemporaryFolder folder_;
  const std::filesystem::path file_ = folder_ / "token";
};

TEST(Token, EachIsAnother) {
  const std::string a = cluster::make_token(), b = cluster::make_token();
  EXPECT_EQ(a.size(), 64u);
  EXPECT_EQ(a.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(a, b);
}

TEST(Token, ComparesEveryCharacter) {
  const std::string token = cluster::make_token();
  EXPECT_TRUE(cluster::same_token(token, token));
  for (std::size_t i = 0; i < token.size(); ++i) {
    std::string other = token;
    other[i] = other[i] == '0' ? '1' : '0';
    EXPECT_FALSE(cluster::same_token(other, token)) << i;
  }
  EXPECT_FALSE(cluster::same_token("", token));
  EXPECT_FALSE(cluster::same_token(token.substr(0, 63), token));
  EXPECT_FALSE(cluster::same_token(token + "0", token));
  EXPECT_FALSE(cluster::same_token(token + std::string(1, '\0'), token));
}

TEST_F(TokenFile, IsReadAsItWasWrittenAndByItsUserAlone) {
  const std::string token = cluster::make_token();
  cluster::write_token(file_, "0");
  cluster::write_token(file_, token);
  EXPECT_EQ(cluster::read_token(file_), token);
  struct stat status {};
  ASSERT_EQ(stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "an unfinished file stayed";
}

TEST_F(TokenFile, WhatIsNoneIsRefused) {
  EXPECT_NE(refusal().find(file_.string() + ": No such file"), std::string::npos) << refusal();
  write(cluster::make_token() + "\n", 0640);
  EXPECT_NE(refusal().find("is open to other users"), std::string::npos) << refusal();
  for (const std::string& text : {std::string(), cluster::make_token(), cluster::make_token() + "\n\n",
                                  "G" + cluster::make_token().substr(1) + "\n", cluster::make_token() + "0\n"}) {
    write(text);
    EXPECT_NE(refusal().find("holds no token"), std::string::npos) << text;
  }
  std::filesystem::remove(file_);
  std::filesystem::create_symlink("/etc/passwd", file_);
  EXPECT_NE(refusal(), "");
}

TEST(TokenFolder, ThatCannotBeWrittenIsNamed) {
  try {
    cluster::write_token("/nowhere/token", "x");
    FAIL();
  } catch (const multinode::UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("/nowhere/token"), std::string::npos) << e.what();
  }
}

}  // namespace token_test
