package transport

import (
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// both sends a ref listing and a fetch ahead on two Remotes, and returns the number of requests of each Remote.
func both(t *testing.T, s *webServer, fx fixture, o Options) (refs, fetch int) {
	t.Helper()
	prefixes := []string{"refs/heads/main"}
	before := len(s.requests())
	r := openRemote(t, s.URL+"/r", o)
	r.RefsAhead(t.Context(), prefixes)
	list, err := r.Refs(t.Context(), prefixes)
	if err != nil || len(list.List) != 1 || list.List[0].ID != fx.head {
		t.Errorf("refs = %+v, %v, want main at %s", list, err, fx.head)
	}
	refs = len(s.requests()) - before
	r = openRemote(t, s.URL+"/r", o)
	req := FetchRequest{Wants: []object.ID{fx.head}, Depth: 2, Filter: "blob:none"}
	r.FetchAhead(t.Context(), req)
	caps, err := r.Capabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !caps.Filter {
		req.Filter = ""
	}
	res, err := r.Fetch(t.Context(), req)
	if err != nil {
		t.Fatalf("fetch failed: %v", err)
	}
	unpack(t, fx.format, res.Pack)
	return refs, len(s.requests()) - before - refs
}

// TestAhead checks that a command that is sent ahead is sent at the same time as the request for capabilities, and only
// once.
func TestAhead(t *testing.T) {
	s, fx := webRepo(t)
	posted, answered := make(chan struct{}), false
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		if r.Method == http.MethodPost {
			close(posted)
		} else {
			select { // the server answers the capabilities only after it has received the command
			case <-posted:
				answered = true
			case <-time.After(10 * time.Second):
			}
		}
		h.ServeHTTP(w, r)
	})
	o := Options{Ahead: new(Ahead)}
	r := openRemote(t, s.URL+"/r", o)
	r.RefsAhead(t.Context(), []string{"refs/heads/main"})
	if refs, err := r.Refs(t.Context(), []string{"refs/heads/main"}); err != nil || len(refs.List) != 1 {
		t.Errorf("Refs = %+v, %v", refs, err)
	}
	if got := s.requests(); len(got) != 2 || !answered {
		t.Errorf("got requests %q, want one for capabilities and one for refs at the same time", got)
	}
	s.set(nil)
	if refs, fetch := both(t, s, fx, o); refs != 2 || fetch != 2 {
		t.Errorf("got %d requests for refs and %d for the fetch, want 2 each", refs, fetch)
	}
	if refs, fetch := both(t, s, fx, Options{}); refs != 2 || fetch != 2 {
		t.Errorf("without Options.Ahead: got %d requests for refs and %d for the fetch, want 2 each", refs, fetch)
	}
}

// TestAheadRefused checks that a command that was sent ahead is sent again if its response cannot be used, and that the
// next command is not sent ahead.
func TestAheadRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		format object.Format
		config []string
		change func(w http.ResponseWriter, r *http.Request, h http.Handler)
	}{
		{name: "sha-256", format: object.SHA256},
		{name: "no filter", format: object.SHA1, config: []string{"uploadpack.allowFilter", "false"}},
		{name: "not found", format: object.SHA1,
			change: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusNotFound) }},
		{name: "broken", format: object.SHA1,
			change: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusBadGateway) }},
		{name: "protocol 0", format: object.SHA1, change: func(w http.ResponseWriter, r *http.Request, h http.Handler) {
			r.Header.Del("Git-Protocol")
			h.ServeHTTP(w, r)
		}},
		{name: "nonsense", format: object.SHA1, change: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			io.WriteString(w, "0009nonse")
		}},
		{name: "hangs up", format: object.SHA1,
			change: func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			fx := makeRepo(t, filepath.Join(root, "r"), c.format)
			if c.config != nil {
				git(t, fx.dir, "", append([]string{"config"}, c.config...)...)
			}
			s := serveWeb(t, root, false)
			// A command that was sent ahead has no agent, because it assumes capabilities that this server has not reported.
			s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
				if r.Method == http.MethodPost && c.change != nil {
					body, _ := io.ReadAll(r.Body)
					r.Body = io.NopCloser(strings.NewReader(string(body)))
					if !strings.Contains(string(body), "agent=") {
						c.change(w, r, h)
						return
					}
				}
				h.ServeHTTP(w, r)
			})
			o := Options{Ahead: new(Ahead)}
			first, firstFetch := both(t, s, fx, o)
			second, secondFetch := both(t, s, fx, o)
			if first > 3 || firstFetch > 3 {
				t.Errorf("got %d requests for refs and %d for the fetch, want at most 3", first, firstFetch)
			}
			if c.name != "hangs up" && (second != 2 || c.name != "sha-256" && secondFetch != 2) {
				t.Errorf("the second time: got %d requests for refs and %d for the fetch, want 2 each: %q", second,
					secondFetch, s.requests())
			}
		})
	}
}

// TestAheadNeverAnswered checks that the client waits only briefly if the server answers only one connection at a time.
func TestAheadNeverAnswered(t *testing.T) {
	s, fx := webRepo(t)
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		if r.Method == http.MethodPost && len(s.requests()) <= 2 {
			io.Copy(io.Discard, r.Body) // net/http notices the client's disconnect only after the body was read
			<-r.Context().Done()
			return
		}
		h.ServeHTTP(w, r)
	})
	o := Options{Ahead: new(Ahead)}
	r := openRemote(t, s.URL+"/r", o)
	r.RefsAhead(t.Context(), []string{"refs/heads/main"})
	start := time.Now()
	if refs, err := r.Refs(t.Context(), []string{"refs/heads/main"}); err != nil || refs.List[0].ID != fx.head {
		t.Errorf("Refs = %+v, %v", refs, err)
	}
	if took := time.Since(start); took < aheadPatience || took > 10*aheadPatience {
		t.Errorf("Refs took %s, want a little more than %s", took, aheadPatience)
	}
}

// TestAheadOfErrors checks that an error of the request for capabilities is returned although a command was sent ahead,
// and that closing a Remote ends this command.
func TestAheadOfErrors(t *testing.T) {
	s, _ := webRepo(t)
	s.set(func(w http.ResponseWriter, r *http.Request, _ http.Handler) { w.WriteHeader(http.StatusForbidden) })
	o := Options{Ahead: new(Ahead)}
	for i, want := range []int{2, 1} {
		before := len(s.requests())
		r := openRemote(t, s.URL+"/r", o)
		r.RefsAhead(t.Context(), nil)
		if _, err := r.Refs(t.Context(), nil); !errors.Is(err, ErrForbidden) {
			t.Errorf("Refs of a forbidden repository: got %v", err)
		}
		r.Close()
		if n := len(s.requests()) - before; n > want {
			t.Errorf("try %d: got %d requests, want at most %d", i+1, n, want)
		}
	}
	if slices.ContainsFunc(s.requests(), func(r string) bool { return !strings.Contains(r, " /r/") }) {
		t.Errorf("requests after Close: got %q", s.requests())
	}
}
