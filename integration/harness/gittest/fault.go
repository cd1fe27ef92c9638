package gittest

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Kind is a kind of fault: a way in which a server misbehaves.
type Kind string

const (
	// Cut closes the connection after After bytes of the answer. If After is 0, no byte is sent.
	Cut Kind = "cut"
	// Stall sends After bytes of the answer, and then no more bytes until the fault is removed.
	Stall Kind = "stall"
	// Drip sends After bytes of the answer without delay, and then one byte at a time with the pause Every.
	Drip Kind = "drip"

	// Only HTTP servers support the following kinds.

	// Status answers with the HTTP status in the field Status (503 if Status is 0). The answer has a header Retry-After
	// if RetryAfter is not 0.
	Status Kind = "status"
	// RequireAuth answers with status 401 unless the request contains the user User and the password Pass or, if User
	// is "", the token Pass. Requests with these credentials are answered normally and are not counted by Hits.
	RequireAuth Kind = "require-auth"
	// Garbage answers with status 200 and After bytes (4096 if After is 0) that are not valid in git's protocol.
	Garbage Kind = "garbage"
	// NoFilter removes `filter` from the capabilities, and refuses requests that use it.
	NoFilter Kind = "no-filter"
	// NoObjectInfo removes `object-info` from the capabilities. Public forges do not announce this capability, but git
	// 2.39 always announces it.
	NoObjectInfo Kind = "no-object-info"
	// NoV2 makes the server answer in protocol v0, even if the client requests v2.
	NoV2 Kind = "no-v2"
	// Dumb serves the repository through the dumb HTTP protocol, which transfers plain files.
	Dumb Kind = "dumb"
	// TruncatedPack sends After bytes of the pack and then ends the answer as if it were complete.
	TruncatedPack Kind = "truncated-pack"
	// CorruptPack inverts one bit in byte number After of the pack. If After is less than 12, it changes byte 14, which
	// is in or right before the first contents. With GoodTrailer, the checksum at the end of the pack matches the
	// changed bytes.
	CorruptPack Kind = "corrupt-pack"
	// WrongObject answers with a valid pack of the requested objects in which the first blob is replaced by another
	// one.
	WrongObject Kind = "wrong-object"
)

// Fault describes how and when a server misbehaves. Kinds that change packs apply only to fetches.
type Fault struct {
	Kind Kind
	On   Command // command of the requests that fail; "" for any command
	// selects requests by the properties that are known before the answer; nil selects all requests
	Match func(Request) bool
	Skip  int // number of matching requests that are answered normally before the first failure
	Times int // number of requests that fail; 0 for all requests until the fault is removed

	After       int64
	Every       time.Duration // pause of Drip between two bytes; 10 ms if Every is 0
	Status      int
	RetryAfter  time.Duration // value of the header Retry-After, in whole seconds
	User, Pass  string
	GoodTrailer bool
}

// Injection is an active fault.
type Injection struct {
	fault   Fault
	removed chan struct{}

	mu   sync.Mutex
	gone bool
	seen int
	hits int
}

// Hits returns the number of requests to which the fault was applied.
func (i *Injection) Hits() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hits
}

// Remove ends the fault. Answers that the fault was delaying continue.
func (i *Injection) Remove() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.gone {
		i.gone = true
		close(i.removed)
	}
}

// Inject adds a fault to the server. Several faults may be active at the same time. Servers other than HTTP servers
// support only Cut, Stall and Drip, and apply them to connections: After then counts the bytes that the server sends,
// and the Request that is passed to Match contains only the number of the connection. Inject panics if the server does
// not support the fault.
func (s *Server) Inject(f Fault) *Injection {
	switch f.Kind {
	case Cut, Stall, Drip:
	case Status, RequireAuth, Garbage, NoFilter, NoObjectInfo, NoV2, Dumb, TruncatedPack, CorruptPack, WrongObject:
		if s.scheme != "http" {
			panic(fmt.Sprintf("gittest: a server of %s cannot do %q", s.scheme, f.Kind))
		}
	default:
		panic(fmt.Sprintf("gittest: unknown fault %q", f.Kind))
	}
	if f.Every == 0 {
		f.Every = 10 * time.Millisecond
	}
	i := &Injection{fault: f, removed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.injections = append(s.injections, i)
	return i
}

// faultsFor returns the faults that apply to a request.
func (s *Server) faultsFor(r Request, authorization string) []*Injection {
	s.mu.Lock()
	all := s.injections
	s.mu.Unlock()
	var due []*Injection
	for _, i := range all {
		if i.due(r, authorization) {
			due = append(due, i)
		}
	}
	return due
}

func (i *Injection) due(r Request, authorization string) bool {
	f := &i.fault
	switch f.Kind {
	case TruncatedPack, CorruptPack, WrongObject:
		if r.Command != Fetch {
			return false
		}
	case RequireAuth:
		if subtle.ConstantTimeCompare([]byte(authorization), []byte(f.authorization())) == 1 {
			return false
		}
	}
	if f.On != "" && r.Command != f.On || f.Match != nil && !f.Match(r) {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.gone || f.Times > 0 && i.hits == f.Times {
		return false
	}
	if i.seen++; i.seen <= f.Skip {
		return false
	}
	i.hits++
	return true
}

// authorization returns the value of the header that RequireAuth accepts.
func (f *Fault) authorization() string {
	if f.User == "" {
		return "Bearer " + f.Pass
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(f.User+":"+f.Pass))
}

// kinds returns the kinds of the given faults as text for the log.
func kinds(faults []*Injection) string {
	var names []string
	for _, i := range faults {
		names = append(names, string(i.fault.Kind))
	}
	return strings.Join(names, "+")
}

// errCut is the error of a connection that a fault has closed.
var errCut = errors.New("connection closed by an injected fault")

// gates apply Cut, Stall and Drip to an answer. These faults count the same bytes.
type gates struct {
	faults []*Injection
	sent   int64
	closed <-chan struct{} // closed when the client has disconnected
}

// allow waits until at least one of the next n bytes may be sent, and returns how many of them may be sent.
func (g *gates) allow(n int) (int, error) {
	for _, i := range g.faults {
		switch i.fault.Kind {
		case Cut, Stall, Drip:
		default:
			continue
		}
		if left := i.fault.After - g.sent; left > 0 {
			n = int(min(int64(n), left))
			continue
		}
		switch i.fault.Kind {
		case Cut:
			return 0, errCut
		case Stall:
			select {
			case <-i.removed:
			case <-g.closed:
				return 0, errCut
			}
		case Drip:
			select {
			case <-i.removed:
				continue
			default:
			}
			if !sleepUntil(time.Now().Add(i.fault.Every), g.closed) {
				return 0, errCut
			}
			n = min(n, 1)
		}
	}
	return n, nil
}
