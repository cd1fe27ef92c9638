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

// Kind is a way in which a server misbehaves.
type Kind string

const (
	// Cut ends the connection after After bytes of the answer. If After is 0, no byte is sent.
	Cut Kind = "cut"
	// Stall sends After bytes of the answer, and then nothing until the fault is removed.
	Stall Kind = "stall"
	// Drip sends After bytes of the answer without delay, and the rest one byte at a time, with the pause Every.
	Drip Kind = "drip"

	// The following kinds are for HTTP servers only.

	// Status answers with the status in the field Status (0: 503), and with Retry-After if RetryAfter is not 0.
	Status Kind = "status"
	// RequireAuth answers 401 until the request contains User and Pass or, if User is "", the token Pass. Requests with the
	// right login are answered normally and do not count as hits.
	RequireAuth Kind = "require-auth"
	// Garbage answers 200 with After bytes (0: 4096) that are not valid in git's protocol.
	Garbage Kind = "garbage"
	// NoFilter removes `filter` from the capabilities, and refuses requests that use it.
	NoFilter Kind = "no-filter"
	// NoObjectInfo removes `object-info` from the capabilities, because git 2.39 announces it whatever its configuration is,
	// and public forges do not.
	NoObjectInfo Kind = "no-object-info"
	// NoV2 makes the server ignore the request for protocol v2, so that it answers in v0.
	NoV2 Kind = "no-v2"
	// Dumb serves the files of the repository without git's protocol.
	Dumb Kind = "dumb"
	// TruncatedPack sends After bytes of the pack and then ends the answer as if it were complete.
	TruncatedPack Kind = "truncated-pack"
	// CorruptPack inverts a bit in the byte with number After of the pack (if After is less than 12: byte 14, in or right
	// before the first contents). With GoodTrailer, the checksum at the end of the pack is correct for the changed bytes.
	CorruptPack Kind = "corrupt-pack"
	// WrongObject answers with a valid pack of the wanted objects in which another blob replaces the first one.
	WrongObject Kind = "wrong-object"
)

// Fault describes how and when a server misbehaves. Kinds that change packs apply only to fetches.
type Fault struct {
	Kind  Kind
	On    Command            // command of the requests that fail; "": any command
	Match func(Request) bool // selects requests by the properties that are known before the answer; nil: all requests
	Skip  int                // number of matching requests that are answered normally first
	Times int                // number of requests that fail after these; 0: all until the fault is removed

	After       int64
	Every       time.Duration // pause of Drip between two bytes; 0: 10 ms
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

// Hits returns the number of requests that the fault has changed.
func (i *Injection) Hits() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hits
}

// Remove ends the fault. Answers that it has delayed continue.
func (i *Injection) Remove() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.gone {
		i.gone = true
		close(i.removed)
	}
}

// Inject makes the server misbehave. Several faults may be active at the same time. Servers other than HTTP support only Cut,
// Stall and Drip, and apply them to connections: After counts the bytes of the server, and Match is called with only the
// number of the connection. Inject panics if the server does not support the fault.
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

// kinds returns the kinds of faults as text for the log.
func kinds(faults []*Injection) string {
	var names []string
	for _, i := range faults {
		names = append(names, string(i.fault.Kind))
	}
	return strings.Join(names, "+")
}

// errCut is the error of a connection that was ended on purpose.
var errCut = errors.New("cut on purpose")

// gates delay or end the flow of an answer for Cut, Stall and Drip, which count the same bytes.
type gates struct {
	faults []*Injection
	sent   int64
	closed <-chan struct{} // closed when the client has disconnected
}

// allow waits until bytes may pass, and returns how many of the next n bytes may.
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
