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
	// Cut ends the connection after After bytes of the answer; with 0, before any of it.
	Cut Kind = "cut"
	// Stall sends After bytes of the answer and then nothing until the fault is removed.
	Stall Kind = "stall"
	// Drip sends After bytes of the answer as they come, and the rest one byte at a time, Every so often.
	Drip Kind = "drip"

	// The others are for servers of HTTP alone.

	// Status answers with Status (0: 503), and with Retry-After if RetryAfter is not 0.
	Status Kind = "status"
	// RequireAuth answers 401 until the request carries User and Pass; without User, until it carries the token Pass.
	// Requests with the right ones are let through and do not count as hits.
	RequireAuth Kind = "require-auth"
	// Garbage answers 200 with After bytes (0: 4096) that are no protocol.
	Garbage Kind = "garbage"
	// NoFilter takes `filter` from the capabilities and refuses requests that use it nevertheless.
	NoFilter Kind = "no-filter"
	// NoObjectInfo takes `object-info` from the capabilities: git 2.39 offers it independent of its configuration, public
	// forges do not.
	NoObjectInfo Kind = "no-object-info"
	// NoV2 makes the server deaf for protocol v2: it answers in v0.
	NoV2 Kind = "no-v2"
	// Dumb serves the files of the repository and no protocol at all.
	Dumb Kind = "dumb"
	// TruncatedPack sends After bytes of the pack and then ends the answer as if that were all.
	TruncatedPack Kind = "truncated-pack"
	// CorruptPack flips a bit in byte After of the pack (less than 12: byte 14, in or right before its first contents).
	// With GoodTrailer the checksum at the pack's end is made to agree.
	CorruptPack Kind = "corrupt-pack"
	// WrongObject answers with a flawless pack of the wanted objects in which another blob stands in for the first.
	WrongObject Kind = "wrong-object"
)

// Fault is a way to misbehave and when. Kinds that deal with packs are done to fetches alone.
type Fault struct {
	Kind  Kind
	On    Command            // to requests of this command; empty: of any
	Match func(Request) bool // and of these; nil: of any. It sees what is known before the answer
	Skip  int                // leave as many matching requests alone first
	Times int                // then do it so often; 0: until removed

	After       int64
	Every       time.Duration // of Drip; 0: 10 ms
	Status      int
	RetryAfter  time.Duration // sent in whole seconds
	User, Pass  string
	GoodTrailer bool
}

// Injection is a fault at work.
type Injection struct {
	fault   Fault
	removed chan struct{}

	mu   sync.Mutex
	gone bool
	seen int
	hits int
}

// Hits returns how many requests the fault was done to.
func (i *Injection) Hits() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hits
}

// Remove ends the fault; answers that it holds up go on.
func (i *Injection) Remove() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.gone {
		i.gone = true
		close(i.removed)
	}
}

// Inject makes the server misbehave. Several faults may be at work at once. Servers that are not HTTP know Cut, Stall
// and Drip, done to connections: After counts what the server sends, Match sees the connection's number alone.
// It panics if the server cannot do the fault.
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

// faultsFor lists what is to be done to a request.
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

// authorization is the header that satisfies RequireAuth.
func (f *Fault) authorization() string {
	if f.User == "" {
		return "Bearer " + f.Pass
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(f.User+":"+f.Pass))
}

// kinds names faults for the log.
func kinds(faults []*Injection) string {
	var names []string
	for _, i := range faults {
		names = append(names, string(i.fault.Kind))
	}
	return strings.Join(names, "+")
}

// errCut ends a connection on purpose.
var errCut = errors.New("cut on purpose")

// gates hold up or end the flow of an answer: Cut, Stall and Drip, counted over the same bytes.
type gates struct {
	faults []*Injection
	sent   int64
	closed <-chan struct{} // the client is gone
}

// allow waits until bytes may pass, and returns how many of the next n may.
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
