package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/daemon"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/statedir"
)

// statusTime is how long a daemon may take to tell its status: it waits for nothing, so it is quick or wedged.
const statusTime = 5 * time.Second

// endPoll is how often a command looks whether a daemon that does not answer has ended.
const endPoll = 10 * time.Millisecond

// served is a mount and whom to ask about it: nobody, if it is a session that is kept and not mounted.
type served struct {
	control.MountStatus
	client *control.Client
	socket string
}

func (s served) mounted() bool { return s.client != nil }

// sockets lists whom to ask: the one that was named, or all that live in the state directory.
func (a *app) sockets(ctx context.Context) ([]string, error) {
	if a.socket != "" {
		return []string{a.socket}, nil
	}
	return control.Sockets(ctx, a.state)
}

// survey is what all daemons of a state directory say.
type survey struct {
	mounts  []served // and what is kept and not mounted
	daemons []serving
}

// serving is a process that serves mounts.
type serving struct {
	socket string
	mounts int
	control.DaemonStatus
	cache control.CacheStatus
}

// mounts gives the mounts of a survey, without numbers of files: for who looks for one.
func (a *app) mounts(ctx context.Context) ([]served, error) {
	s, err := a.surveyBy(ctx, (*control.Client).Mounts)
	return s.mounts, err
}

// add adds sessions that are kept, and mounts that failed, to those that are served. Of a mount that failed and left work
// there is one entry, that of the session, which says why it is not mounted.
func (s *survey) add(kept, failed []control.MountStatus) {
	sameWork := func(a, b control.MountStatus) bool { return a.Dir == b.Dir && a.Session.Name == b.Session.Name }
	for _, m := range s.mounts { // a daemon tells of those, too
		failed = slices.DeleteFunc(failed, func(f control.MountStatus) bool { return f.Dir == m.Dir })
		if m.State == control.StateFailed {
			failed = append(failed, m.MountStatus)
		}
	}
	for _, k := range kept {
		for _, f := range failed {
			if sameWork(k, f) {
				k.State, k.Since, k.Error = control.StateFailed, f.Since, cmp.Or(k.Error, f.Error)
			}
		}
		s.mounts = append(slices.DeleteFunc(s.mounts, func(m served) bool {
			return m.State == control.StateFailed && sameWork(m.MountStatus, k)
		}), served{MountStatus: k})
	}
	for _, f := range failed {
		if !slices.ContainsFunc(s.mounts, func(m served) bool { return sameWork(m.MountStatus, f) }) {
			s.mounts = append(s.mounts, served{MountStatus: f})
		}
	}
}

// survey asks every daemon at once. What the others said is there even when the error tells that one did not answer.
func (a *app) survey(ctx context.Context) (survey, error) {
	return a.surveyBy(ctx, (*control.Client).Status)
}

func (a *app) surveyBy(ctx context.Context, question func(*control.Client, context.Context) (control.Status, error)) (survey, error) {
	var s survey
	sockets, err := a.sockets(ctx)
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	answers, errs := make([]control.Status, len(sockets)), make([]error, len(sockets))
	clients := make([]*control.Client, len(sockets))
	var wg sync.WaitGroup
	for i, socket := range sockets {
		wg.Go(func() { answers[i], clients[i], errs[i] = ask(ctx, socket, question) })
	}
	wg.Wait()
	for i, socket := range sockets {
		for _, m := range answers[i].Mounts {
			s.mounts = append(s.mounts, served{m, clients[i], socket})
		}
		if errs[i] == nil {
			s.daemons = append(s.daemons, serving{socket, len(answers[i].Mounts), answers[i].Daemon, answers[i].Cache})
		}
		if errors.Is(errs[i], control.ErrNoServer) && a.socket == "" {
			errs[i] = nil // it ended since it was listed
		}
	}
	if guest, ok := a.guest(ctx, s.mounts, question); ok {
		s.mounts = append(s.mounts, guest)
	}
	kept, err := daemon.Kept(a.state)
	s.add(kept, daemon.Failed(a.state))
	errs = append(errs, err)
	sort.SliceStable(s.mounts, func(i, j int) bool { return s.mounts[i].Dir < s.mounts[j].Dir })
	return s, a.ofState(errors.Join(errs...))
}

// guest returns the mount around the current directory if it is served by a daemon of which no socket is to be seen from
// here, as in a container.
func (a *app) guest(ctx context.Context, seen []served, question func(*control.Client, context.Context) (control.Status, error)) (served, bool) {
	dir, err := os.Getwd()
	if err != nil || a.socket != "" {
		return served{}, false
	}
	root, ok := control.GuestDir(dir)
	if !ok || slices.ContainsFunc(seen, func(m served) bool { return m.Dir == root && m.mounted() }) {
		return served{}, false
	}
	client, err := control.DialGuest(ctx, root)
	if err != nil {
		return served{}, false
	}
	status, err := question(client, ctx)
	if err != nil || len(status.Mounts) != 1 {
		return served{}, false
	}
	return served{status.Mounts[0], client, ""}, true
}

func ask(ctx context.Context, socket string, question func(*control.Client, context.Context) (control.Status, error)) (control.Status, *control.Client, error) {
	client, err := control.Dial(ctx, socket)
	if err != nil {
		return control.Status{}, nil, err
	}
	status, err := question(client, ctx)
	if err != nil && !errors.Is(err, control.ErrNoServer) {
		err = failure("ask", socket, err)
	}
	return status, client, err
}

// find gives the mount at dir, or the nearest one above it. Not finding one is an error of exit code 4, unless some
// daemon could not be asked.
func find(all []served, asked error, verb, dir string) (served, error) {
	for _, spelling := range spellings(dir) {
		best := -1
		for i, m := range all {
			if m.mounted() && inside(m.Dir, spelling) && (best < 0 || len(m.Dir) > len(all[best].Dir)) {
				best = i
			}
		}
		if best >= 0 {
			return all[best], nil
		}
	}
	if asked != nil {
		return served{}, asked
	}
	e := notMounted(verb, dir)
	if k, ok := findKept(all, dir); ok {
		e.Hint = resumeCommand(k.MountStatus) + " resumes the session " + k.Session.Name
	}
	return served{}, e
}

// findKept returns the kept session that was last mounted at dir, unless another one is mounted there now.
func findKept(all []served, dir string) (served, bool) {
	for _, spelling := range spellings(dir) {
		if slices.ContainsFunc(all, func(m served) bool { return m.mounted() && m.Dir == spelling }) {
			return served{}, false
		}
		for _, m := range all {
			if !m.mounted() && m.Dir == spelling {
				return m, true
			}
		}
	}
	return served{}, false
}

// resumeCommand is what goes on with a session.
func resumeCommand(m control.MountStatus) string {
	words := []string{"artifactfs", "mount", m.Remote, m.Dir}
	if m.Session.Name != statedir.SessionName(m.Remote, m.Dir) {
		words = append(words, "--session", m.Session.Name)
	}
	for i, w := range words {
		words[i] = shellWord(w)
	}
	return strings.Join(words, " ")
}

// shellWord writes a word as a shell reads it.
func shellWord(w string) string { return control.ShellWord(w) }

func notMounted(verb, dir string) *control.Error {
	e := &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotMounted, Verb: verb, Object: dir, Cause: "no artifactfs mount there",
		Hint: "artifactfs list shows what is"}
	table, _ := os.ReadFile("/proc/self/mountinfo")
	for _, spelling := range spellings(dir) {
		switch {
		case !hasMount(table, spelling):
		case !mountpoint.IsDead(spelling):
			e.Cause = "the mount there is not served by a daemon of this state directory"
			e.Hint = "--state DIR names the state directory of who mounted it"
		default:
			e.Cause = "a dead mount is there: the process that served it is gone"
			e.Hint = "umount -l " + dir + " removes it (fusermount3 -uz for users)"
		}
	}
	return e
}

// failure says what was being done to what, unless err already does.
func failure(verb, object string, err error) error {
	e := *control.AsError(err)
	if e.Verb == "" {
		e.Verb, e.Object = verb, object
	}
	return &e
}

// spellings gives the names a directory may be mounted by, absolute: as it is written, with its parent's symbolic
// links resolved, and last with its own. The order matters: only the last looks into a mount, which may hang.
func spellings(dir string) []string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return []string{dir}
	}
	all := []string{abs}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		all = append(all, filepath.Join(parent, filepath.Base(abs)))
	}
	if info, err := os.Lstat(abs); err == nil && info.Mode()&os.ModeSymlink != 0 {
		if real, err := filepath.EvalSymlinks(abs); err == nil {
			all = append(all, real)
		}
	}
	return all
}

// inside says whether path is dir or lies below it.
func inside(dir, path string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/' || dir == "/")
}

// hasMount says whether the kernel's table has a mount of ours at dir. Format: proc_pid_mountinfo(5); field 5 is
// the mount point with spaces and control characters in octal, the type follows the separator " - ".
func hasMount(table []byte, dir string) bool { return mountTypeAt(table, dir) == "fuse.artifactfs" }

// mountTypeAt gives the type of what is mounted at dir, of several the one that is seen; "": nothing is.
func mountTypeAt(table []byte, dir string) (kind string) {
	quoted := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(dir)
	for line := range bytes.Lines(table) {
		fields := strings.Fields(string(line))
		_, rest, _ := strings.Cut(string(line), " - ")
		if len(fields) > 4 && fields[4] == quoted {
			kind, _, _ = strings.Cut(rest, " ")
		}
	}
	return kind
}

// completeMounts offers the mounted directories to the shell, those already named left out.
func (a *app) completeMounts(most int) cobra.CompletionFunc {
	return a.completeListed(most, func(m served) (choice, about string) {
		if m.mounted() {
			return m.Dir, m.Remote
		}
		return "", ""
	}, cobra.ShellCompDirectiveNoFileComp)
}

// completeListed offers what there is to say of each mount and session ("": nothing), and what the shell may offer besides.
func (a *app) completeListed(most int, of func(m served) (choice, about string), besides cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		state, err := control.StateDir(a.state)
		if err != nil || len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		a.state = state
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		all, _ := a.mounts(ctx)
		var choices []cobra.Completion
		for _, m := range all {
			if choice, about := of(m); choice != "" {
				choices = append(choices, cobra.CompletionWithDesc(choice, about))
			}
		}
		return choices, besides
	}
}

// printJSON writes one object on one line.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}
