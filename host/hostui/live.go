package hostui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/server/ui"
)

const (
	// time for which a live page waits for its first map, so that a browser without scripts shows the map
	firstWait = 250 * time.Millisecond
	beat      = 15 * time.Second // interval of empty messages, by which a closed connection is noticed
	sendTime  = 30 * time.Second // time in which a browser must have received a message

	defaultWidth, defaultHeight = 1000, 600
	minSide, maxSide            = 200, 5000 // limits, in pixels, of the width and height that a browser may request
)

// request states which part of a mount a live page shows, and the size of the map in pixels.
type request struct {
	mount, path   string
	bytes         bool
	width, height float64
}

// parse reads a request from the query of a URL.
func parse(q url.Values) request {
	side := func(name string, otherwise int) float64 {
		n, err := strconv.Atoi(q.Get(name))
		if err != nil {
			n = otherwise
		}
		return float64(min(max(n, minSide), maxSide))
	}
	r := request{mount: q.Get("mount"), bytes: q.Get("by") == "bytes", width: side("width", defaultWidth),
		height: side("height", defaultHeight)}
	if p := strings.Trim(path.Clean("/"+q.Get("path")), "/"); p != "." {
		r.path = p
	}
	return r
}

// key returns the key of the feed that has the data for the request.
func (r request) key() feedKey { return feedKey{r.mount, r.path, r.bytes} }

// livePageData is the data of the live page of a mount.
type livePageData struct {
	view
	Mount, Events string
	Width, Height float64
	Steps         []ui.Crumb // directories above the directory that is shown
	ByFiles       string     // URL path of the page that shows the tree by files; "" on this page itself
	ByBytes       string     // URL path of the page that shows the tree by bytes; "" on this page itself
	Session       string     // URL path of the page of the session; "" if there is none
	Command       string
}

// live returns the live page that the query of a request describes.
func (p *Page) live(ctx context.Context, hr *http.Request) (ui.Page, error) {
	r := parse(hr.URL.Query())
	m, err := p.mount(ctx, r.mount)
	if err != nil {
		return ui.Page{}, err
	}
	f, err := p.feeds.use(m, r.key())
	if err != nil {
		return ui.Page{}, err
	}
	defer f.release()
	s, next := f.sample()
	for timeout := time.After(firstWait); !s.Known && s.Problem == "" && timeout != nil; s, next = f.sample() {
		select {
		case <-next:
		case <-timeout:
			timeout = nil
		case <-ctx.Done():
			return ui.Page{}, ctx.Err()
		}
	}
	page := livePageData{view: r.view(s), Mount: m.Dir,
		Events: eventsPath + strings.TrimPrefix(liveURL(r.mount, r.path, r.bytes), livePath),
		Width:  r.width, Height: r.height, Command: "artifactfs trace " + m.Dir}
	if r.bytes {
		page.ByFiles = liveURL(r.mount, r.path, false)
	} else {
		page.ByBytes = liveURL(r.mount, r.path, true)
	}
	if r.path != "" {
		page.Steps = []ui.Crumb{{Name: path.Base(m.Dir), Path: liveURL(r.mount, "", r.bytes)}}
		parts := strings.Split(r.path, "/")
		for i := range parts[:len(parts)-1] {
			page.Steps = append(page.Steps,
				ui.Crumb{Name: parts[i], Path: liveURL(r.mount, strings.Join(parts[:i+1], "/"), r.bytes)})
		}
	}
	if d, err := p.repos.find(func(d directory) bool { return d.session != "" && d.Name == m.ID }); err == nil {
		page.Session = d.page()
	}
	body, err := p.body("live.html", page)
	return ui.Page{Title: path.Join(path.Base(m.Dir), r.path),
		Crumbs: []ui.Crumb{{Name: m.Dir, Path: liveURL(r.mount, "", r.bytes)}},
		Body:   body, Script: "live.js", Style: "live.css"}, err
}

// events sends views of a mount to the script of a live page as server-sent events, until the browser closes the
// connection or the mount ends.
func (p *Page) events(w http.ResponseWriter, hr *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if site := hr.Header.Get("Sec-Fetch-Site"); !p.ui.SignedIn(hr) || site != "" && site != "same-origin" &&
		site != "none" {
		http.Error(w, "sign in first", http.StatusUnauthorized)
		return
	}
	if hr.Method != http.MethodGet {
		h.Set("Allow", "GET")
		http.Error(w, "method must be GET", http.StatusMethodNotAllowed)
		return
	}
	ctx, r := hr.Context(), parse(hr.URL.Query())
	m, err := p.mount(ctx, r.mount)
	var f *feed
	if err == nil {
		f, err = p.feeds.use(m, r.key())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound) // the script then shows that the mount is gone
		return
	}
	defer f.release()
	h.Set("Content-Type", "text/event-stream")
	c := http.NewResponseController(w)
	send := func(text string) bool {
		// ignore the error, because the writers of tests have no deadlines
		_ = c.SetWriteDeadline(time.Now().Add(sendTime))
		_, err := fmt.Fprint(w, text)
		return err == nil && c.Flush() == nil
	}
	for s, next := f.sample(); ; s, next = f.sample() {
		if s.Known || s.Problem != "" {
			text, err := json.Marshal(r.view(s))
			if err != nil || !send("data: "+string(text)+"\n\n") || s.Problem != "" {
				return
			}
		}
		select {
		case <-next:
		case <-time.After(beat):
			if !send(": \n\n") {
				return
			}
		case <-ctx.Done(): // the browser has closed the connection, or the page ends
			s.Problem = "The page has ended."
			if text, err := json.Marshal(r.view(s)); err == nil {
				send("data: " + string(text) + "\n\n")
			}
			return
		}
	}
}
