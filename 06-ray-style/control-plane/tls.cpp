#include "tls.hpp"

#include <grpcpp/create_channel.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <stdexcept>

namespace cluster {

namespace {

constexpr char certificate_name[] = "multinode-cluster";  // in the certificate, whatever the head's host is called
constexpr long day = 24 * 60 * 60;

template <class T, class Free>
auto owned(T* object, Free free) {
  if (!object) throw std::runtime_error("OpenSSL: " + std::string(ERR_reason_error_string(ERR_get_error())));
  return std::unique_ptr<T, Free>(object, free);
}

}  // namespace

std::string make_key() {
  const auto key = owned(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const auto certificate = owned(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -day);  // the hosts' clocks may differ
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3650 * day);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(certificate_name), -1,
                             -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  const auto other_name = owned(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, ("DNS:" + std::string(certificate_name)).c_str()),
      X509_EXTENSION_free);
  X509_add_ext(certificate.get(), other_name.get(), -1);
  const auto out = owned(BIO_new(BIO_s_mem()), BIO_free_all);
  if (!X509_sign(certificate.get(), key.get(), EVP_sha256()) ||
      !PEM_write_bio_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) ||
      !PEM_write_bio_X509(out.get(), certificate.get()))
    throw std::runtime_error("OpenSSL cannot make the cluster's key");
  const char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

// In each place gRPC reads the part of the text that it needs, and skips the other one.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const std::string& key) {
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = key;
  options.pem_key_cert_pairs.push_back({key, key});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::Channel> make_channel(const multinode::Endpoint& head, const std::string& key) {
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(certificate_name);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a separate connection
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5'000);  // a client sees in this way that the head's host is dead
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(most_message_bytes);
  return grpc::CreateCustomChannel(to_string(head), grpc::SslCredentials({key, key, key}), arguments);
}

}  // namespace cluster
