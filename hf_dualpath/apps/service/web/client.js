// A client of the service in plain JavaScript. It connects again after a break and goes on after the last event.
//
//   const stream = connect("/v1/stream?direction=de-en", (event) => console.log(event.event, event.word));
//   stream.send("Ich habe heute "); stream.send({ end: true });

const PASSING = [1001, 1005, 1006, 1011, 1012, 1013]; // as in protocol.py: all other ends are final

export function connect(path, onEvent, onState = () => {}) {
  const url = new URL(path, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  const sent = []; // messages that may not have arrived
  let [socket, arrived, pause, stopped, ready] = [null, 0, 500, false, false];

  function open() {
    socket = new WebSocket(url);
    socket.onmessage = (message) => {
      const event = JSON.parse(message.data);
      if (event.event === "open") {
        const before = url.searchParams.get("stream");
        event.fresh = before !== event.stream;
        if (before && event.fresh && arrived + sent.length > 0) {
          stopped = true;
          socket.close();
          return onState("closed", "The stream is gone: begin a new one.");
        }
        pause = 500;
        url.searchParams.set("stream", event.stream);
        if (event.received !== undefined) {
          sent.splice(0, event.received - arrived);
          arrived = event.received;
        }
        sent.forEach((text) => socket.send(text));
        ready = true; // not before: what waits would be sent twice
        onState("open");
      } else {
        url.searchParams.set("after", event.seq);
      }
      onEvent(event);
    };
    socket.onclose = ({ code, reason }) => {
      ready = false;
      if (stopped || !PASSING.includes(code)) return onState("closed", reason);
      onState("lost");
      setTimeout(open, pause);
      pause = Math.min(2 * pause, 10000);
    };
  }

  open();
  return {
    send(message) {
      const text = JSON.stringify(typeof message === "string" ? { text: message } : message);
      sent.push(text);
      if (ready) socket.send(text);
    },
    close() {
      stopped = true;
      socket.close();
    },
  };
}
