package gittest

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// handler answers smart HTTP requests. It logs them, applies the active faults, and passes them to git.
type handler struct {
	s       *Server
	backend backend
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer h.s.wg.Done()
	at := time.Now()
	asked, body, err := h.classify(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	asked.At = at
	faults := h.s.faultsFor(asked, r.Header.Get("Authorization"))
	asked.Fault = kinds(faults)
	e := h.s.log.begin(asked)
	t := h.s.newTally(e, h.backend.repoDir(asked.Repo))
	defer t.over()
	a := &reply{w: w, control: http.NewResponseController(w), tally: t,
		gates: gates{faults: faults, closed: r.Context().Done()}}
	if err := h.answer(a, r, &arriving{body, h.s.log, e}, faults, asked); err != nil {
		// Abort the connection, so that the client does not mistake an incomplete answer for a complete one.
		panic(http.ErrAbortHandler)
	}
}

// classify determines the command of a request. The result body contains the bytes that the client has sent, for git to
// read.
func (h *handler) classify(r *http.Request) (asked Request, body io.Reader, err error) {
	body = r.Body
	path, service := r.URL.Path, r.URL.Query().Get("service")
	asked.Command = Other
	switch {
	case strings.HasSuffix(path, "/info/refs"):
		path = strings.TrimSuffix(path, "/info/refs")
		switch service {
		case "git-upload-pack":
			asked.Command = Capabilities
		case "git-receive-pack":
			asked.Command = Push
		}
	case strings.HasSuffix(path, "/git-receive-pack"):
		path, asked.Command = strings.TrimSuffix(path, "/git-receive-pack"), Push
	case strings.HasSuffix(path, "/git-upload-pack") && r.Method == http.MethodPost:
		path = strings.TrimSuffix(path, "/git-upload-pack")
		var sent []byte
		if sent, asked, err = readAsk(r); err != nil {
			return asked, nil, err
		}
		r.ContentLength = int64(len(sent)) // the length is known now, even if the body was sent in chunks
		body = bytes.NewReader(sent)
	}
	for field := range strings.SplitSeq(r.Header.Get("Git-Protocol"), ":") {
		if v, ok := strings.CutPrefix(field, "version="); ok {
			asked.Version, _ = strconv.Atoi(v)
		}
	}
	asked.Conn, _ = r.Context().Value(connKey{}).(int)
	asked.Repo, asked.Method, asked.Path = strings.TrimPrefix(path, "/"), r.Method, r.URL.RequestURI()
	return asked, body, nil
}

// arriving is the body of a request that counts the bytes that are read.
type arriving struct {
	io.Reader
	log *Log
	e   *entry
}

func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	a.log.update(a.e, func(e *entry) { e.BytesIn += int64(n) })
	return n, err
}

// answer passes a request to git and applies the faults that change git's input or output. Faults that only delay the
// answer are applied by reply.
func (h *handler) answer(a *reply, r *http.Request, body io.Reader, faults []*Injection, asked Request) error {
	var env []string
	var out io.Writer = a
	var changed *packFault
	var said *bytes.Buffer // answer with the capabilities; some of them are removed before it is sent
	for _, i := range faults {
		f := &i.fault
		switch f.Kind {
		case Status:
			return a.status(f, body)
		case RequireAuth:
			scheme := `Basic realm="gittest"`
			if f.User == "" {
				scheme = "Bearer"
			}
			a.w.Header().Set("WWW-Authenticate", scheme)
			return a.plain(http.StatusUnauthorized, "wrong or no credentials\n", body)
		case Garbage:
			return a.garbage(f, r, body)
		case WrongObject:
			io.Copy(io.Discard, body)
			a.header(http.StatusOK, resultHeader())
			return h.wrongObject(a, asked)
		case Dumb:
			if r.Method == http.MethodPost {
				return a.plain(http.StatusNotFound, "only files here\n", body)
			}
			r.URL.RawQuery = ""
		case NoV2:
			r.Header.Del("Git-Protocol")
		case NoFilter:
			env = h.s.noFilterEnv()
		case NoObjectInfo:
			if asked.Command == Capabilities {
				said = new(bytes.Buffer)
				out = said
			}
		case TruncatedPack, CorruptPack:
			changed = newPackFault(f, asked.format, out)
			out = changed
		}
	}
	if asked.Command == Push {
		// git may write a warning while it still reads the pack of a push. Without full duplex, net/http would then
		// discard a part of the pack.
		if err := a.control.EnableFullDuplex(); err != nil && r.ProtoMajor == 1 {
			return err
		}
	}
	err := h.backend.run(r.Context(), r, body, env, a.header, out)
	if changed != nil && errors.Is(err, errTruncated) {
		return nil
	}
	if said != nil && err == nil {
		_, err = a.Write(bytes.Replace(said.Bytes(), []byte("0010object-info\n"), nil, 1))
	}
	return err
}

func resultHeader() http.Header {
	return http.Header{"Content-Type": {"application/x-git-upload-pack-result"}, "Cache-Control": {"no-cache"}}
}

// reply sends an answer to the client without buffering. It counts the bytes in the tally and applies the faults of the
// gates.
type reply struct {
	w       http.ResponseWriter
	control *http.ResponseController
	tally   *tally
	gates   gates
}

func (a *reply) header(status int, h http.Header) {
	for k, v := range h {
		a.w.Header()[k] = v
	}
	a.tally.s.log.update(a.tally.e, func(e *entry) { e.Status = status })
	a.w.WriteHeader(status)
}

func (a *reply) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := a.gates.allow(len(p) - done)
		if err != nil {
			return done, err
		}
		part := p[done : done+n]
		a.tally.passes(part)
		if _, err := a.w.Write(part); err != nil {
			return done, err
		}
		if err := a.control.Flush(); err != nil {
			return done, err
		}
		a.gates.sent += int64(n)
		done += n
	}
	return done, nil
}

// plain sends an answer that does not come from git. It reads the body of the request, so that the connection can be
// used again.
func (a *reply) plain(status int, text string, body io.Reader) error {
	if _, err := io.Copy(io.Discard, body); err != nil {
		return err
	}
	a.header(status, http.Header{"Content-Type": {"text/plain"}, "Content-Length": {strconv.Itoa(len(text))}})
	_, err := io.WriteString(a, text)
	return err
}

func (a *reply) status(f *Fault, body io.Reader) error {
	status := f.Status
	if status == 0 {
		status = http.StatusServiceUnavailable
	}
	if f.RetryAfter > 0 {
		a.w.Header().Set("Retry-After", strconv.Itoa(int(f.RetryAfter/time.Second)))
	}
	return a.plain(status, http.StatusText(status)+"\n", body)
}

func (a *reply) garbage(f *Fault, r *http.Request, body io.Reader) error {
	if _, err := io.Copy(io.Discard, body); err != nil {
		return err
	}
	h := resultHeader()
	if r.Method == http.MethodGet {
		h.Set("Content-Type", "application/x-git-upload-pack-advertisement")
	}
	a.header(http.StatusOK, h)
	noise := rand.New(rand.NewPCG(1, 2)) // the seed is fixed, so that every run sends the same bytes
	p := make([]byte, 4096)
	n := f.After
	if n == 0 {
		n = int64(len(p))
	}
	for n > 0 {
		part := p[:min(n, int64(len(p)))]
		for i := range part {
			// not a hexadecimal digit, so that the bytes cannot start a valid packet
			part[i] = byte(noise.Uint32()) | 0x80
		}
		if _, err := a.Write(part); err != nil {
			return err
		}
		n -= int64(len(part))
	}
	return nil
}
