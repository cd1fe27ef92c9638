package githttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/replica"
)

const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"
)

// git returns a git command of the service for the request. options are options of git itself.
func (e *exchange) git(ctx context.Context, options []string, args ...string) (*exec.Cmd, error) {
	cmd := e.s.unlimited(ctx, slices.Concat(options, []string{strings.TrimPrefix(e.service, "git-"), "--stateless-rpc"},
		args)...)
	if protocol := e.r.Header.Get("Git-Protocol"); protocol != "" {
		if !isProtocol(protocol) {
			return nil, refusal{http.StatusBadRequest, "Bad Request: invalid Git-Protocol"}
		}
		cmd.Env = append(cmd.Env, "GIT_PROTOCOL="+protocol)
	}
	return cmd, nil
}

// unlimited returns a git command for run, which limits its memory.
func (s *Server) unlimited(ctx context.Context, args ...string) *exec.Cmd {
	cmd := gitcmd.New(ctx, args...)
	cmd.Env = slices.Clone(s.git.Env)
	return cmd
}

// place waits for a place for git and returns it.
func (e *exchange) place(ctx context.Context, size places.Size) (*places.Place, error) {
	return e.s.slots.Enter(ctx, size, e.shares()...)
}

// shares returns the shares of places that the request uses.
func (e *exchange) shares() []places.Share {
	return places.Of(e.repo.Namespace, e.repo.ID, e.token.ID)
}

// mostThreads is the maximum number of threads of a git command, because each may need pack.windowMemory.
const mostThreads = 4

// threads returns options that set the number of threads of a command that begins now: one for each processor of its
// share.
func (s *Server) threads() []string { return threads(s.processors, s.slots.Running()) }

func threads(processors, running int) []string {
	return []string{"-c", fmt.Sprintf("pack.threads=%d", min(mostThreads, max(1, processors/max(1, running))))}
}

// run runs git for the request, and counts the run in the metrics.
func (e *exchange) run(ctx context.Context, prepare func(ctx context.Context) (command, error)) error {
	ended := e.s.o.Meter.Git(strings.TrimPrefix(e.service, "git-"))
	err := run(ctx, prepare)
	ended(err)
	return err
}

// version2 reports whether the client has requested version 2 of the protocol. Only fetches have a version 2.
func (e *exchange) version2() bool {
	return e.service == uploadPack && slices.Contains(strings.Split(e.r.Header.Get("Git-Protocol"), ":"), "version=2")
}

// advertise answers the first request of a fetch or a push.
func (e *exchange) advertise(ctx context.Context) error {
	out := &output{e: e, kind: "application/x-" + e.service + "-advertisement", limit: e.s.limits.Answer, hold: true}
	if e.version2() {
		text, err := e.s.offers.get(ctx, e.repo.ObjectFormat, e.askCapabilities)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return out.end(err)
	}
	head := pktline.AppendFlush(pktline.AppendLine(nil, "# service="+e.service))
	if _, err := out.Write(head); err != nil {
		return out.end(err)
	}
	return out.end(e.advertiseRefs(ctx, out))
}

// advertiseRefs writes git's answer to the first request of a fetch or a push.
func (e *exchange) advertiseRefs(ctx context.Context, out io.Writer) error {
	place, err := e.place(ctx, places.Small)
	if err != nil {
		return err
	}
	defer place.Release()
	ctx = place.Limit(ctx)
	at, err := e.s.o.Replicas.AcquireRepo(ctx, e.repo)
	if err != nil {
		return err
	}
	defer at.Release()
	if e.service == receivePack && !e.version1() {
		return e.advertiseToPush(ctx, at, out)
	}
	return e.askRefs(ctx, at, out)
}

// askRefs writes the refs of a replica as git prints them.
func (e *exchange) askRefs(ctx context.Context, at *replica.Replica, out io.Writer) error {
	return e.run(ctx, func(ctx context.Context) (c command, err error) {
		c = command{out: out, time: e.s.limits.Time, memory: gitcmd.MemoryOf(ctx, e.s.git.Memory)}
		c.cmd, err = e.git(ctx, nil, "--http-backend-info-refs", at.Dir)
		return c, err
	})
}

// version1 reports whether the client has requested version 1 of the protocol.
func (e *exchange) version1() bool {
	return slices.Contains(strings.Split(e.r.Header.Get("Git-Protocol"), ":"), "version=1")
}

// advertiseToPush writes the refs of a replica as git receive-pack does. git itself needs a second for 100,000 refs,
// because it looks up each object.
func (e *exchange) advertiseToPush(ctx context.Context, at *replica.Replica, out io.Writer) error {
	refs, err := packedrefs.Map(at.Dir)
	if err != nil {
		return err
	}
	defer refs.Unmap()
	if _, err := os.Lstat(filepath.Join(at.Dir, "shallow")); err == nil || len(refs) < fewRefs {
		return e.askRefs(ctx, at, out)
	}
	offered, err := e.s.offers.get(ctx, e.service+" "+e.repo.ObjectFormat, func(ctx context.Context) ([]byte, error) {
		first := &head{}
		err := e.askRefs(ctx, at, first)
		_, text, _ := bytes.Cut(first.text, []byte("\x00"))
		text, _, found := bytes.Cut(text, []byte("\n"))
		if err == nil && !found {
			err = errors.New("git has not listed its capabilities")
		}
		return text, err
	})
	if err != nil {
		return err
	}
	buffer := bufio.NewWriterSize(out, 64<<10)
	rest := "\x00" + string(offered)
	var line []byte
	for name, id := range refs.Below("refs/") {
		line = pktline.AppendLine(line[:0], id+" "+name+rest)
		if _, err := buffer.Write(line); err != nil {
			return err
		}
		rest = ""
	}
	if _, err := buffer.Write(pktline.AppendFlush(nil)); err != nil {
		return err
	}
	return buffer.Flush()
}

// fewRefs is the size of packed-refs, in bytes, below which git itself writes the refs for a push.
const fewRefs = 16 << 10

// head keeps the first KiB of what is written to it.
type head struct{ text []byte }

func (h *head) Write(p []byte) (int, error) {
	h.text = append(h.text, p[:min(len(p), 1<<10-len(h.text))]...)
	return len(p), nil
}

// askCapabilities returns git's list of capabilities for protocol version 2.
func (e *exchange) askCapabilities(ctx context.Context) ([]byte, error) {
	var text bytes.Buffer
	err := e.advertiseRefs(ctx, &text)
	if err == nil && !bytes.HasSuffix(text.Bytes(), []byte("0000")) {
		err = errors.New("capabilities of git end unexpectedly")
	}
	return text.Bytes(), err
}

// maxHead is the number of bytes at the beginning of a request that are read before git has a place. They show the kind
// of a fetch.
const maxHead = 64 << 10

// readHead reads the first maxHead bytes of a fetch. Its memory grows with what arrives, because a client can begin
// many requests and send nothing. The reader returns the error of a body that ends too early again.
func readHead(in io.Reader) ([]byte, error) {
	head, err := io.ReadAll(io.LimitReader(in, maxHead))
	if err == io.ErrUnexpectedEOF {
		err = nil
	}
	return head, err
}

// fetch answers the requests of a fetch after the first one.
func (e *exchange) fetch(ctx context.Context) error {
	begun, err := e.s.heads.Enter(ctx, places.Small, e.shares()...)
	if err != nil {
		return err
	}
	defer begun.Release()
	in, err := e.newInput(e.s.limits.Fetch)
	if err != nil {
		return err
	}
	defer in.settle(e.w.Header())
	defer context.AfterFunc(ctx, in.unblock)()
	head, err := readHead(in)
	if err != nil {
		return because(ctx, err)
	}
	in.due, in.pace = time.Time{}, e.s.limits.newPace()
	place, err := e.place(ctx, places.Large)
	begun.Release()
	if err != nil {
		return err
	}
	defer place.Release()
	ctx = place.Limit(ctx)
	at, err := e.s.o.Replicas.AcquireRepo(ctx, e.repo)
	if err != nil {
		return err
	}
	defer at.Release()
	asked := readAsked(head, at.Dir)
	out := &output{e: e, kind: "application/x-" + e.service + "-result", limit: e.s.limits.Answer}
	err = e.run(ctx, func(ctx context.Context) (c command, err error) {
		c = command{
			body: io.MultiReader(bytes.NewReader(head), in), out: out, unblock: in.unblock,
			time: e.s.limits.Time, memory: gitcmd.MemoryOf(ctx, e.s.git.Memory),
		}
		c.cmd, err = e.git(ctx, append(e.s.threads(), asked.options()...), at.Dir)
		return c, err
	})
	err = in.why(err)
	if err == nil && out.pack {
		e.fetched(asked.kind(), in.total+out.total)
	} else if err != nil && out.begun {
		e.failed(err)
	}
	return out.end(err)
}

// fetched records a fetch that has succeeded: its event, its counters and its audit entry. size is the number of bytes
// of the request and the answer.
func (e *exchange) fetched(kind string, size int64) {
	stamp := events.ByToken(e.s.o.Account, e.token)
	switch kind {
	case meter.Clone:
		e.s.notes.add(events.Cloned(stamp, e.repo))
	case meter.Fetch:
		e.s.notes.add(events.Fetched(stamp, e.repo))
	default:
		return
	}
	e.s.o.Meter.Count(e.repo, kind, size)
	e.audit(http.StatusOK, kind)
}

// failed writes the audit entry of a request that has failed after its status was sent, and logs the failure.
func (e *exchange) failed(err error) {
	answer, ours := refusalFor(err)
	e.audit(answer.status, answer.text)
	if ours {
		e.report(err)
	}
}
