// Package githttp serves git's smart HTTP protocol (gitprotocol-http(5)) for the repositories of a server:
//
//	/git/NAMESPACE/REPO.git/info/refs?service=git-upload-pack or git-receive-pack
//	/git/NAMESPACE/REPO.git/git-upload-pack, /git/NAMESPACE/REPO.git/git-receive-pack
//	/git/NAMESPACE/REPO.git/artifactfs/token (not a part of git's protocol: JSON that describes the token of the request)
//
// Stock git answers the requests: this package finds the repository, checks the token, limits time, memory, bytes and
// the number of processes, and passes bytes between the client and `git upload-pack --stateless-rpc` or `git
// receive-pack --stateless-rpc`.
//
// The answers are those of Cloudflare Artifacts: 401 without credentials, 403 for tokens that are invalid or do not
// suffice.
package githttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// Prefix is the prefix of the paths of all repositories.
const Prefix = "/git/"

// Options configures a Server.
type Options struct {
	Records  *records.DB
	Replicas *replica.Set
	Guard    *access.Guard
	Meter    *meter.Meter // counts operations; nil: not counted
	Account  string       // id of the account, for events
	Dir      string       // directory for files of the server; New creates it
	Limits   Limits
	Quotas   *quota.Keeper  // checks quotas of namespaces; nil: there are none
	Memory   *places.Memory // memory of all git processes together; nil: no limit
	// whether to behave as the live service where that differs from its documentation: read-only repositories accept
	// pushes
	Compat bool
	Log    *zap.Logger
}

// Limits contains the limits of requests. A limit of zero is replaced by its default.
type Limits struct {
	Time time.Duration // maximum duration of a git command
	// maximum processor time of git for a push, without that for its size; 0: a sixtieth of Time
	Work  time.Duration
	Idle  time.Duration // maximum time in which the client neither sends nor reads a byte
	Grace time.Duration // maximum time for which a transfer may be slower than Rate
	Rate  int64         // minimum average number of bytes per second that a client must send or receive
	// maximum time until the client has sent the commands of a push, or the wants of a fetch; longer if they are large
	Head        time.Duration
	Push        int64 // maximum size of the body of a push in bytes, uncompressed
	Fetch       int64 // maximum size of the body of a fetch in bytes, uncompressed
	Answer      int64 // maximum size of an answer in bytes
	Processes   int   // maximum number of git commands at the same time
	OfRepo      int   // maximum number of git commands at the same time for one repository
	OfToken     int   // maximum number of git commands at the same time for one token
	OfNamespace int   // maximum number of git commands at the same time for one namespace
	// maximum number of refs that a token with rules may have created, without those that it has removed
	Refs     int64
	Waiting  int           // maximum number of requests that wait for a git command
	Patience time.Duration // maximum time for which a request waits for a git command
}

// complete returns l with default values in place of zeros. processors is the number of processors. With these values,
// no repository, token or namespace can use all places.
func (l Limits) complete(processors int) Limits {
	set(&l.Time, time.Hour)
	set(&l.Work, l.Time/60)
	set(&l.Idle, time.Minute)
	set(&l.Head, time.Minute)
	set(&l.Grace, 30*time.Second)
	set(&l.Rate, 2<<10)
	set(&l.Push, 4<<30)
	set(&l.Refs, 20_000)
	set(&l.Fetch, 64<<20)
	set(&l.Answer, 64<<30)
	set(&l.Processes, 16*processors)
	parts := places.Parts(l.Processes)
	set(&l.OfRepo, parts[places.OfRepo])
	set(&l.OfToken, parts[places.OfToken])
	set(&l.OfNamespace, parts[places.OfNamespace])
	set(&l.Waiting, 4096)
	set(&l.Patience, 30*time.Second)
	return l
}

// workRate is the number of bytes of a push for which git may use one more second of processor time. For a pack of
// git.git it uses a fifteenth of that.
const workRate = 512 << 10

// work returns the processor time that git may use for a push of which it has received a number of bytes.
func (l Limits) work(received int64) time.Duration {
	return l.Work + time.Duration(float64(received)/workRate*float64(time.Second))
}

func set[T int | int64 | time.Duration](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}

// Server is the handler of the requests below Prefix.
type Server struct {
	o          Options
	limits     Limits
	git        gitcmd.Confined
	receiver   *receive.Receiver
	slots      *places.Places
	heads      *places.Places // for fetches whose beginning is being read, or waits for one of slots
	offers     offers
	processors int
	notes      *notes
}

// New returns a Server. processors is the number of processors, on which default limits depend.
func New(o Options, processors int) (*Server, error) {
	s := &Server{o: o, limits: o.Limits.complete(processors), git: o.Replicas.Git()}
	var err error
	s.receiver, err = receive.New(receive.Options{
		Dir: filepath.Join(o.Dir, "hooks"), Records: o.Records, Replicas: o.Replicas, Quotas: o.Quotas, Log: o.Log,
		Events: s.pushed, MostRefs: s.limits.Refs,
	})
	if err != nil {
		return nil, fmt.Errorf("open git server: %w", err)
	}
	s.slots = places.New(places.Options{Most: s.limits.Processes, Waiting: s.limits.Waiting, Patience: s.limits.Patience,
		MostOf: map[places.Kind]int{places.OfRepo: s.limits.OfRepo, places.OfToken: s.limits.OfToken,
			places.OfNamespace: s.limits.OfNamespace},
		Memory: o.Memory, Class: places.Transfers})
	heads := max(s.limits.Waiting/4, leastHeads)
	s.heads = places.New(places.Options{Most: heads, MostOf: places.Parts(heads), Waiting: s.limits.Waiting,
		Patience: s.limits.Patience})
	s.processors = processors
	s.notes = newNotes(o.Records.Events, o.Log)
	return s, nil
}

// leastHeads is the least number of places for the beginnings of fetches.
const leastHeads = 64

// Close writes the events of fetches that were not written yet. The caller must have ended all requests.
func (s *Server) Close() { s.notes.close() }

// pushed returns the function that makes the events of a push.
func (s *Server) pushed(ctx context.Context, dir string, repo records.Repo, t records.Token,
	updates []records.RefUpdate,
	merges []events.Merge) receive.MakeEvents {
	commits, err := events.Walk(ctx, s.git, dir, updates)
	if err != nil && ctx.Err() == nil {
		s.o.Log.Warn("events of a push lack commits", zap.String("repository", repo.ID), zap.Error(err))
	}
	stamp, acts := events.ByToken(s.o.Account, t), events.Acts(dir, repo, updates, merges)
	return func(done []records.RefUpdate) []records.Event {
		s.o.Meter.Refs(len(done), len(updates)-len(done))
		return append(events.Pushed(stamp, repo, done, commits), acts(stamp, done)...)
	}
}

// exchange is one request with its answer.
type exchange struct {
	s       *Server
	w       http.ResponseWriter
	r       *http.Request
	rc      *http.ResponseController
	service string // "git-upload-pack" or "git-receive-pack"; "GET" for other requests, which run neither program
	repo    records.Repo
	token   records.Token
	begin   time.Time
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, ok := parsePath(r.URL.EscapedPath())
	if !ok {
		http.Error(w, "Not Found", http.StatusNotFound)
		return
	}
	e := &exchange{s: s, w: w, r: r, rc: http.NewResponseController(w), begin: time.Now()}
	w.Header().Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	// Remove the deadline of the server, which is too short for transfers: here, each write has a separate deadline.
	_ = e.rc.SetWriteDeadline(time.Time{})
	if err := e.serve(at); err != nil {
		e.refuse(err)
	}
}

// serve answers the request. If it returns an error, it has not answered yet.
func (e *exchange) serve(at target) error {
	var method string
	var do func(ctx context.Context) error
	switch at.rest {
	case "info/refs":
		method, e.service, do = http.MethodGet, e.r.URL.Query().Get("service"), e.advertise
		if e.service == "" {
			return refusal{http.StatusForbidden, "The dumb HTTP protocol is not supported: this needs git 1.6.6 or newer"}
		}
		if e.service != uploadPack && e.service != receivePack {
			return refusal{http.StatusForbidden, "Unsupported service"}
		}
	case uploadPack:
		method, e.service, do = http.MethodPost, at.rest, e.fetch
	case receivePack:
		method, e.service, do = http.MethodPost, at.rest, e.push
	case "artifactfs/token":
		method, e.service, do = http.MethodGet, http.MethodGet, e.describeToken
	case "info/lfs/objects/batch", "info/lfs/locks", "info/lfs/locks/verify":
		e.refuseLFS()
		return nil
	default:
		return refusal{http.StatusNotFound, "Not Found"}
	}
	if e.r.Method != method {
		e.w.Header().Set("Allow", method)
		return refusal{http.StatusMethodNotAllowed, "Method Not Allowed"}
	}
	if method == http.MethodPost && e.r.Header.Get("Content-Type") != "application/x-"+e.service+"-request" {
		return refusal{http.StatusUnsupportedMediaType, "Unsupported Media Type"}
	}
	ctx := e.r.Context()
	if err := e.admit(ctx, at); err != nil {
		return err
	}
	ctx, cancel := e.s.o.Guard.Watch(ctx, e.token)
	defer cancel()
	return do(ctx)
}

// admit finds the repository and checks the token.
func (e *exchange) admit(ctx context.Context, at target) error {
	scope := records.ReadScope
	if e.service == receivePack {
		scope = records.WriteScope
	}
	repo, err := e.s.o.Records.Repos.Get(ctx, at.namespace, at.repo)
	missing := errors.Is(err, records.ErrNotFound)
	if missing {
		repo = records.Repo{Namespace: at.namespace}
	} else if err != nil {
		return err
	}
	if e.token, err = e.s.o.Guard.Git(ctx, e.r, repo, scope); err != nil {
		return err
	}
	e.repo = repo
	if err := e.s.o.Quotas.Request(repo.Namespace); err != nil {
		return err
	}
	switch {
	case missing:
		return refusal{http.StatusNotFound, "Repository not found"}
	case e.service == receivePack && repo.ReadOnly && !e.s.o.Compat:
		return refusal{http.StatusForbidden, "Repository is read-only"}
	case e.service == receivePack && repo.Status != records.Ready && repo.Status != "":
		return refusal{http.StatusConflict, "Repository is " + string(repo.Status)}
	}
	return nil
}

// cause describes the sender of the request for the audit log.
func (e *exchange) cause() records.Cause {
	actor := e.token.Actor
	if actor == "" {
		actor = e.token.Label
	}
	remote, _, err := net.SplitHostPort(e.r.RemoteAddr)
	if err != nil {
		remote = e.r.RemoteAddr
	}
	return records.Cause{TokenID: e.token.ID, Actor: actor, Remote: remote, Method: e.service,
		Target: e.r.URL.EscapedPath()}
}

// unavailable reports whether err means that the client should try again.
func unavailable(err error) bool {
	return errors.Is(err, records.ErrUnavailable) || errors.Is(err, objects.ErrUnavailable) ||
		errors.Is(err, places.ErrBusy) ||
		errors.Is(err, records.ErrCollected)
}
