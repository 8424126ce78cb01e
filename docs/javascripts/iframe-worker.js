// The search runs in a worker. Browsers refuse one to a page that is opened as a file, so there it runs in a hidden frame.
"use strict";

class IFrameWorker extends EventTarget {
  // The theme looks for a class of this name, and then gives whole addresses to importScripts.
  constructor(url) {
    super();
    this.frame = document.body.appendChild(document.createElement("iframe"));
    this.frame.hidden = true;
    const inside = this.frame.contentWindow;
    inside.document.open(); // or Firefox empties it later
    inside.document.write("<!doctype html><body>");
    inside.document.close();
    const load = (address) =>
      new Promise((loaded, failed) => {
        const script = inside.document.createElement("script");
        script.src = address;
        script.onload = loaded;
        script.onerror = failed;
        inside.document.body.append(script);
      });
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    inside.importScripts = async (...addresses) => {
      for (const address of addresses) await load(address);
    };
    this.ready = load(url);
  }

  postMessage(data) {
    const inside = this.frame.contentWindow;
    this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = window.IFrameWorker = IFrameWorker;
