// The theme searches in a worker. This stands in front of it, for two reasons.
//
// Who pastes a message wants the page about it. The theme finds each word, and all that begin with
// it: "a", "in" and numbers would find nearly all pages, and ":" is an error. Of long texts, only
// the words that say something are searched.
//
// A page that a browser opens from a disk (file:) may start no worker. An invisible frame takes its
// place; it shares the page's thread.
{
  const QUERY = 2; // the theme's number of such a message
  const MANY = 5;

  const inWords = (message) => {
    if (message.type !== QUERY || message.data.trim().split(/\s+/).length < MANY) return message;
    const words = message.data.split(/\W+/).filter((word) => word.length > 3 && /\D/.test(word));
    return { ...message, data: [...new Set(words)].join(" ") };
  };

  const InFrame = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      // In a worker, this answers the page.
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      this.ready = new Promise((done) => script.addEventListener("load", done));
      frame.contentDocument.body.append(script);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };

  const Base = location.protocol === "file:" ? InFrame : window.Worker;
  window.Worker = class extends Base {
    postMessage(message, ...more) {
      super.postMessage(inWords(message), ...more);
    }
  };
  if (Base === InFrame) window.IFrameWorker = InFrame; // by which the theme's script knows it
}
