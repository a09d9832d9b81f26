//! What is sent.

/// A request: its line, its fields in order, and its body.
#[derive(Clone, Debug)]
pub struct Request {
    /// Up to the last field, each line with its end.
    head: String,
    body: Vec<u8>,
}

impl Request {
    /// Begins a request for `path`. `host` is the server's `HOST:PORT`.
    ///
    /// ```
    /// let request = pinion_client::Request::new("GET", "h:1", "/health").key(Some("k"));
    /// let text = "GET /health HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer k\r\n\r\n";
    /// assert_eq!(request.bytes(), text.as_bytes());
    /// ```
    #[must_use]
    pub fn new(method: &str, host: &str, path: &str) -> Request {
        Request { head: format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n"), body: Vec::new() }
    }

    /// Adds a field as it stands. A test may send one that is malformed.
    #[must_use]
    pub fn field(mut self, name: &str, value: &str) -> Request {
        self.head.push_str(name);
        self.head.push_str(": ");
        self.head.push_str(value);
        self.head.push_str("\r\n");
        self
    }

    /// Adds the key of the server, if there is one.
    #[must_use]
    pub fn key(self, key: Option<&str>) -> Request {
        match key {
            Some(key) => self.field("Authorization", &format!("Bearer {key}")),
            None => self,
        }
    }

    /// Asks the server to close the connection after its answer.
    #[must_use]
    pub fn last(self) -> Request {
        self.field("Connection", "close")
    }

    /// Adds a body of JSON, with its type and length.
    #[must_use]
    pub fn json(self, body: impl Into<Vec<u8>>) -> Request {
        let body = body.into();
        let length = body.len().to_string();
        let typed = self.field("Content-Type", "application/json").field("Content-Length", &length);
        Request { body, ..typed }
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), b"\r\n", &self.body].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_in_order_and_the_length_is_the_bodys() {
        let request = Request::new("POST", "h:1", "/base/v1/x").last().field("A", "b").key(None).json("{}");
        let text = "POST /base/v1/x HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\nA: b\r\n\
                    Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(String::from_utf8(request.bytes()).unwrap(), text);
    }
}
