// Browsers start no worker for a page that was opened from disk. There the worker's script, which is the search, runs in
// a frame of the page instead. Loaded before everything else; does nothing on a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.inside = new Promise((ready, failed) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow
          const load = (source) => new Promise((loaded, lost) => {
            const script = inside.document.createElement("script")
            Object.assign(script, { src: source, onload: loaded, onerror: lost })
            inside.document.head.append(script)
          })
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          inside.importScripts = async (...sources) => { for (const source of sources) await load(source) }
          load(url).then(() => ready(inside), failed)
        }, { once: true })
        document.body.append(frame)
      })
    }
    async postMessage(data) {
      const inside = await this.inside
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }
  }
}
