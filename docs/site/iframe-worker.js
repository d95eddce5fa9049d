// Browsers start no worker from a file. The search of this site is one, so that where the page is a
// file, a hidden frame runs its script instead: messages go to and from it as they would.
if (window.location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.inside = this.frame.contentWindow;
      this.waiting = [];
      this.ready = false;
      window.addEventListener("message", (event) => {
        if (event.source !== this.inside) return;
        const message = new MessageEvent("message", { data: event.data });
        if (this.onmessage) this.onmessage(message);
        this.dispatchEvent(message);
      });
      const page = this.inside.document;
      this.inside.postMessage = (data) => window.dispatchEvent(
        new MessageEvent("message", { data, source: this.inside }));
      this.inside.importScripts = (...files) => files.reduce(
        (before, file) => before.then(() => this.load(page, file)), Promise.resolve());
      this.load(page, url).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    load(page, file) {
      return new Promise((loaded) => {
        const script = page.createElement("script");
        script.src = String(file);
        script.addEventListener("load", loaded);
        page.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (!this.ready) this.waiting.push(data);
      else this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
