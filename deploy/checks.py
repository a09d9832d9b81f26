"""What the checks in this folder share: streams under load from inside a container, and free ports."""
import socket

STREAMS = 8
TOKENS = 480
# Needs bash alone. For each of its streams it says `whole`, or `cut` with what came last.
CLIENT = r'''
one() {
    body='{"prompt":"ROMEO:","max_tokens":TOKENS,"min_tokens":TOKENS,"temperature":0.7,"seed":'$1',"stream":true,"stream_options":{"include_usage":true}}'
    exec 3<>/dev/tcp/127.0.0.1/8000 || { echo "cut: no connection"; return; }
    printf 'POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s' ${#body} "$body" >&3
    text=$(cat <&3)
    case $text in
    *'"completion_tokens":TOKENS'*'data: [DONE]'*) echo whole ;;
    *) echo "cut: ${text: -300}" ;;
    esac
}
for seed in $(seq STREAMS); do one "$seed" & done
wait
'''.replace("TOKENS", str(TOKENS)).replace("STREAMS", str(STREAMS))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
