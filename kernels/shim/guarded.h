// How the shim's C functions end: with 0, or with 1 and a message. No exception leaves them.
#pragma once

#include <string.h>

#include <exception>

#include <c10/util/Exception.h>

template <class Body>
int32_t guarded(char* error, uint64_t error_len, Body body) {
    const char* message = "unknown C++ exception";
    try {
        body();
        return 0;
    } catch (const c10::Error& e) {
        message = e.what_without_backtrace();
        strncpy(error, message, error_len - 1);
    } catch (const std::exception& e) {
        strncpy(error, e.what(), error_len - 1);
    } catch (...) {
        strncpy(error, message, error_len - 1);
    }
    error[error_len - 1] = 0;
    return 1;
}
