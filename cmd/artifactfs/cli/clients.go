package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// StatusTime is the timeout for the status of a daemon. A daemon does not wait for anything before it replies to this
// request, so a daemon that needs longer hangs.
const StatusTime = 5 * time.Second

// EndPoll is the interval at which a command checks whether a daemon that does not answer has ended.
const EndPoll = 10 * time.Millisecond

// LookTime is the timeout for looking up names in a mount.
const LookTime = 2 * time.Second

// Look calls read, which looks up names in a mount, and returns its result. ok is false if read has not returned within
// LookTime. The call of read then continues until the mount answers.
func Look[T any](read func() T) (result T, ok bool) {
	done := make(chan T, 1)
	go func() { done <- read() }()
	select {
	case result = <-done:
		return result, true
	case <-time.After(LookTime):
		return result, false
	}
}

// Served is a mount with a client of the daemon that serves it. The client is nil for a session that is not mounted.
type Served struct {
	// MountStatus is the status that the daemon or the state directory reported.
	control.MountStatus
	Client *control.Client
	// socket is the path of the daemon's socket. It is "" for the mount that contains the current directory if the client
	// is connected through the mount itself.
	socket string
}

// Mounted reports whether a daemon serves the mount.
func (s Served) Mounted() bool { return s.Client != nil }

// Guest reports whether the client is connected through the mount itself, as in a container.
func (s Served) Guest() bool { return s.Client != nil && s.socket == "" }

// Sockets returns the sockets of the daemons to query: the socket that --socket names, or all sockets of the state
// directory.
func (a *App) Sockets(ctx context.Context) ([]string, error) {
	if a.Socket != "" {
		return []string{a.Socket}, nil
	}
	return control.Sockets(ctx, a.State)
}

// Survey is the status of all daemons of a state directory.
type Survey struct {
	Mounts  []Served // mounts, also failed ones, and sessions that are not mounted; ordered by directory
	Daemons []Serving
}

// Serving is a process that serves mounts.
type Serving struct {
	Socket string
	Mounts int
	control.DaemonStatus
	Cache control.CacheStatus
}

// Mounts returns the mounts of all daemons without the numbers of their files, which a daemon needs time to count. It
// returns an error in the same cases as Survey.
func (a *App) Mounts(ctx context.Context) ([]Served, error) {
	s, err := a.surveyBy(ctx, func(c *control.Client, ctx context.Context) (control.Status, error) {
		return c.Mounts(ctx, control.MountsRequest{})
	}, true)
	return s.Mounts, err
}

// Add adds sessions that are not mounted and failed mounts to s. If a failed mount has left changes, s gets only one
// entry: that of the mount's session, with the error of the mount.
func (s *Survey) Add(unmounted, failed []control.MountStatus) {
	sameWork := func(a, b control.MountStatus) bool { return a.Dir == b.Dir && a.Session.Name == b.Session.Name }
	for _, m := range s.Mounts { // daemons also report failed mounts
		failed = slices.DeleteFunc(failed, func(f control.MountStatus) bool { return f.Dir == m.Dir })
		if m.State == control.StateFailed {
			failed = append(failed, m.MountStatus)
		}
	}
	for _, k := range unmounted {
		for _, f := range failed {
			if sameWork(k, f) {
				k.State, k.Since, k.Error = control.StateFailed, f.Since, cmp.Or(k.Error, f.Error)
			}
		}
		s.Mounts = append(slices.DeleteFunc(s.Mounts, func(m Served) bool {
			return m.State == control.StateFailed && sameWork(m.MountStatus, k)
		}), Served{MountStatus: k})
	}
	for _, f := range failed {
		if !slices.ContainsFunc(s.Mounts, func(m Served) bool { return sameWork(m.MountStatus, f) }) {
			s.Mounts = append(s.Mounts, Served{MountStatus: f})
		}
	}
}

// Survey queries all daemons concurrently. If a daemon does not reply, Survey returns the replies of the other daemons
// and an error. A daemon that does not reply within StatusTime counts as failed.
func (a *App) Survey(ctx context.Context) (Survey, error) {
	return a.surveyBy(ctx, (*control.Client).Status, true)
}

// question sends a request for the mounts of a daemon.
type question = func(*control.Client, context.Context) (control.Status, error)

// surveyBy queries all daemons concurrently, with the function question. If unmounted is set, the result also has the
// sessions that are not mounted and the failed mounts.
func (a *App) surveyBy(ctx context.Context, question question, unmounted bool) (Survey, error) {
	var s Survey
	sockets, err := a.Sockets(ctx)
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, StatusTime)
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
			s.Mounts = append(s.Mounts, Served{m, clients[i], socket})
		}
		if errs[i] == nil {
			s.Daemons = append(s.Daemons, Serving{socket, len(answers[i].Mounts), answers[i].Daemon, answers[i].Cache})
		}
		if errors.Is(errs[i], control.ErrNoServer) && a.Socket == "" {
			errs[i] = nil // the daemon ended after its socket was listed
		}
	}
	if guest, ok := a.guest(ctx, s.Mounts, question); ok {
		s.Mounts = append(s.Mounts, guest)
	}
	if !unmounted {
		return s, errors.Join(errs...)
	}
	kept, err := catalog.Unmounted(a.State)
	s.Add(kept, daemon.Failed(a.State))
	errs = append(errs, err)
	sort.SliceStable(s.Mounts, func(i, j int) bool { return s.Mounts[i].Dir < s.Mounts[j].Dir })
	return s, a.OfState(errors.Join(errs...))
}

// guest returns the mount that contains the current directory if the socket of the mount's daemon is not reachable, as
// in a container. The client then connects through the mount itself: see control.GuestDir.
func (a *App) guest(ctx context.Context, seen []Served, question question) (Served, bool) {
	dir, err := os.Getwd()
	if err != nil || a.Socket != "" {
		return Served{}, false
	}
	root, ok := control.GuestDir(dir)
	if !ok || slices.ContainsFunc(seen, func(m Served) bool { return m.Dir == root && m.Mounted() }) {
		return Served{}, false
	}
	client, err := control.DialGuest(ctx, root)
	if err != nil {
		return Served{}, false
	}
	status, err := question(client, ctx)
	if err != nil || len(status.Mounts) != 1 {
		return Served{}, false
	}
	return Served{status.Mounts[0], client, ""}, true
}

// ask connects to the daemon at socket and calls question, which sends the request.
func ask(ctx context.Context, socket string, question question) (control.Status, *control.Client, error) {
	client, err := control.Dial(ctx, socket)
	if err != nil {
		return control.Status{}, nil, err
	}
	status, err := question(client, ctx)
	if err != nil && !errors.Is(err, control.ErrNoServer) {
		err = Failure("ask", socket, err)
	}
	return status, client, err
}

// Find returns the mount at dir, or the nearest mount above dir. If one mount is inside another, Find returns the inner
// mount. If dir is in no mount, Find returns an error: that of Mounts, or an error with exit code 4.
func (a *App) Find(ctx context.Context, verb, dir string) (Served, error) {
	// The sessions that are not mounted matter only for the text of an error.
	s, _ := a.surveyBy(ctx, func(c *control.Client, ctx context.Context) (control.Status, error) {
		return c.Mounts(ctx, control.MountsRequest{Names: true})
	}, false)
	if m, ok := innermost(s.Mounts, dir); ok && m.State != control.StateFailed {
		return m, nil
	}
	all, asked := a.Mounts(ctx)
	return Find(all, asked, verb, dir)
}

// innermost returns the mount at dir, or the nearest mount above dir. It returns false if dir is in no mount.
func innermost(all []Served, dir string) (Served, bool) {
	for _, spelling := range Spellings(dir) {
		// The innermost mount has the longest directory.
		best := -1
		for i, m := range all {
			if m.Mounted() && mountinfo.Within(m.Dir, spelling) && (best < 0 || len(m.Dir) > len(all[best].Dir)) {
				best = i
			}
		}
		if best >= 0 {
			return all[best], true
		}
	}
	return Served{}, false
}

// Find is like App.Find for mounts and sessions that the caller has listed. The parameter asked is the error of the
// list.
func Find(all []Served, asked error, verb, dir string) (Served, error) {
	if m, ok := innermost(all, dir); ok {
		return m, nil
	}
	if asked != nil {
		return Served{}, asked
	}
	e := NotMounted(verb, dir)
	if k, ok := FindUnmounted(all, dir); ok {
		e.Hint = "run " + ResumeCommand(k.MountStatus) + " to resume session " + k.Session.Name
	}
	return Served{}, e
}

// FindUnmounted returns the kept session that was last mounted at dir, unless another session is mounted there now.
func FindUnmounted(all []Served, dir string) (Served, bool) {
	for _, spelling := range Spellings(dir) {
		if slices.ContainsFunc(all, func(m Served) bool { return m.Mounted() && m.Dir == spelling }) {
			return Served{}, false
		}
		for _, m := range all {
			if !m.Mounted() && m.Dir == spelling {
				return m, true
			}
		}
	}
	return Served{}, false
}

// ResumeCommand returns the shell command that resumes a session.
func ResumeCommand(m control.MountStatus) string {
	words := []string{"artifactfs", "mount", m.Remote, m.Dir}
	if m.Session.Name != statedir.SessionName(m.Remote, m.Dir) {
		words = append(words, "--session", m.Session.Name)
	}
	for i, w := range words {
		words[i] = ShellWord(w)
	}
	return strings.Join(words, " ")
}

// ShellWord quotes a word for a shell if necessary.
func ShellWord(w string) string { return control.ShellWord(w) }

// NotMounted returns the error for a directory without a mount of this state directory. If the directory has a dead
// mount, or a mount of another state directory, the hint names the remedy.
func NotMounted(verb, dir string) *control.Error {
	e := &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotMounted, Verb: verb,
		Object: dir, Cause: "no artifactfs mount at this directory",
		Hint: "run artifactfs list to see the mounted directories"}
	table, _ := mountinfo.Self()
	for _, spelling := range Spellings(dir) {
		switch {
		case !HasMount(table, spelling):
		case !mountpoint.IsDead(spelling):
			e.Cause = "mount is served by a daemon with another state directory"
			e.Hint = "add --state DIR with the state directory of the mount"
		default:
			e.Cause = "directory has a dead mount, whose process has exited"
			e.Hint = "run artifactfs unmount " + dir + " to remove the dead mount"
		}
	}
	return e
}

// Failure returns err as a *control.Error with the given verb and object. An error that already has a verb keeps its
// verb and object.
func Failure(verb, object string, err error) error {
	e := *control.AsError(err)
	if e.Verb == "" {
		e.Verb, e.Object = verb, object
	}
	return &e
}

// Spellings returns the absolute names under which a directory may be mounted. The first name is dir as it was written,
// the second has the symbolic links of its parent resolved, and in the last name a link at dir itself is also resolved.
// To get the last name, the directory itself has to be read, which can hang in a dead mount; the other names do not
// require this.
func Spellings(dir string) []string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return []string{dir}
	}
	abs = realPlace(abs)
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

// HasMount reports whether the topmost mount at dir is a mount of artifactfs.
func HasMount(table mountinfo.Table, dir string) bool {
	m, _ := table.At(dir)
	return m.Type == "fuse.artifactfs"
}

// CheckVisible returns an error unless artifactfs is mounted at dir in this mount namespace. It returns nil if the
// mount table cannot be read.
func CheckVisible(verb, dir string) error {
	table, err := mountinfo.Self()
	if err != nil || HasMount(table, dir) {
		return nil
	}
	return &control.Error{Code: control.ExitFailed, Verb: verb, Object: dir,
		Cause: "directory was mounted in the daemon's mount namespace, which differs from the one of this command",
		Hint:  "add --state DIR with another state directory to start a daemon in this mount namespace"}
}

// CompleteMounts completes the directories of mounts for a command that takes at most as many arguments as the
// parameter most states.
func (a *App) CompleteMounts(most int) cobra.CompletionFunc {
	return a.CompleteListed(most, func(m Served) (choice, about string) {
		if m.Mounted() {
			return m.Dir, m.Remote
		}
		return "", ""
	}, cobra.ShellCompDirectiveNoFileComp)
}

// CompleteListed completes arguments from the list of mounts and sessions, for a command that takes at most as many
// arguments as the parameter most states. The function in the parameter of returns the argument for a mount and its
// description; an empty argument skips the mount. The parameter besides is the directive to the shell, for example to
// complete file names as well.
func (a *App) CompleteListed(most int, of func(m Served) (choice, about string),
	besides cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		state, err := control.StateDir(a.State)
		if err != nil || len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		a.State = state
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		all, _ := a.Mounts(ctx)
		var choices []cobra.Completion
		for _, m := range all {
			if choice, about := of(m); choice != "" {
				choices = append(choices, cobra.CompletionWithDesc(choice, about))
			}
		}
		return choices, besides
	}
}

// PrintJSON writes v as JSON on one line.
func PrintJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return Printed(e.Encode(v))
}
