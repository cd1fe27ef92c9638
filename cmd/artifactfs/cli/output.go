package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"golang.org/x/sys/unix"
)

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// PrintLine writes a label and one line of text, indented.
func PrintLine(w io.Writer, label, format string, args ...any) {
	fmt.Fprintf(w, "  %-8s  %s\n", label, OneLine(fmt.Sprintf(format, args...)))
}

// Ago returns the time from t to now as text, in its largest unit.
func Ago(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < 2*time.Second:
		return "just now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s ago", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	}
	return fmt.Sprintf("%d days ago", d/(24*time.Hour))
}

// Days is the value of a flag for a duration that accepts days ("7d") as well as Go's units.
type Days time.Duration

// String implements pflag.Value.
func (d *Days) String() string {
	if *d == 0 {
		return ""
	}
	return strconv.FormatFloat(time.Duration(*d).Hours()/24, 'g', 4, 64) + "d"
}

// Type implements pflag.Value: it is the placeholder in help texts.
func (d *Days) Type() string { return "AGE" }

// Set implements pflag.Value. It refuses negative durations and more than 36500 days.
func (d *Days) Set(text string) error {
	t, err := time.ParseDuration(text)
	// time.ParseDuration has no unit for days.
	if number, ok := strings.CutSuffix(text, "d"); ok {
		var n float64
		if n, err = strconv.ParseFloat(number, 64); err == nil && !(math.Abs(n) < 36500) {
			err = errors.New("duration is too long")
		}
		t = time.Duration(n * 24 * float64(time.Hour))
	}
	if err != nil || t < 0 {
		return errors.New("invalid duration; examples are 7d and 12h")
	}
	*d = Days(max(t, 1)) // In a request, 0 means the default, so replace a 0 from the user by 1 ns.
	return nil
}

// Printed returns the error of a command that could not print its result, and nil for nil.
func Printed(err error) error {
	if err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

// OneLine returns text on one line without control characters, as errors are printed.
func OneLine(text string) string { return (&control.Error{Cause: text}).Error() }

// OrDash returns text like OneLine, or "-" for an empty text.
func OrDash(text string) string { return cmp.Or(OneLine(text), "-") }

// First returns the first argument, or "".
func First(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// Confirm asks the user whether to remove the session that the parameter what names. It returns an error if standard
// input is not a terminal, or if the answer is not yes.
func Confirm(a *App, verb, what string) error {
	return Ask(a, verb, what, fmt.Sprintf("%s %s here and on its session remote?", verb, what))
}

// Ask asks the user a question before a command removes something. It returns an error if standard input is not a
// terminal, or if the answer is not yes.
func Ask(a *App, verb, what, question string) error {
	if !IsTerminal(os.Stdin) {
		return &control.Error{Code: control.ExitUsage, Verb: verb, Object: what,
			Cause: "deletion must be confirmed, but standard input is not a terminal", Hint: "add --yes to confirm"}
	}
	fmt.Fprintf(a.Stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); err == nil && (answer == "y" || answer == "yes") {
		return nil
	}
	return &control.Error{Code: control.ExitFailed, Verb: verb, Object: what, Cause: "not confirmed: nothing was deleted"}
}

// PrintStays prints the refs of a deleted session that stay on the session remote.
func PrintStays(a *App, r control.SessionDeleteReply) {
	for _, ref := range r.Kept {
		fmt.Fprintf(a.Stderr, "artifactfs: %s stays unchanged on the session remote\n", ref)
	}
}

// LeftText returns a text with a path that a checkpoint does not contain, and the reason why the checkpoint does not
// contain it.
func LeftText(l control.LeftOut) string {
	why := map[string]string{"secret": "looks like a secret", "size": BytesOf(l.Size),
		"type":     "not a file that git can store",
		"filter":   "a required filter has failed: only earlier contents are in the checkpoint, if any",
		"worktree": "a linked worktree that cannot be read: uncommitted changes in it are only on this host"}[l.Why]
	if why == "" {
		why = l.Why
	}
	return fmt.Sprintf("%s (%s)", l.Path, why)
}

// PushedText describes how much of the session was pushed.
func PushedText(s control.SessionStatus, now time.Time) string {
	text := "to " + SessionRemoteText(s)
	switch {
	case s.Mode == control.RemoteEmbedded:
		return text
	case s.Mode == "seed":
		text += " (seed: with the complete history)"
	case s.Mode == "thin":
		text += " (thin: only the objects of the session)"
	}
	if s.Pending > 0 {
		text += fmt.Sprintf(", %s pending", Plural(s.Pending, "ref"))
	} else {
		text += ", all pushed"
	}
	if s.LastSync != nil {
		text += ", " + Ago(*s.LastSync, now)
	}
	return text
}

// TrafficText describes the number of bytes that the session has sent and received.
func TrafficText(s control.SessionStatus) string {
	text := fmt.Sprintf("%s sent, %s received", BytesOf(s.Sent), BytesOf(s.Received))
	if s.Seeded > 0 {
		text += fmt.Sprintf(", %s fetched from the mounted remote", BytesOf(s.Seeded))
	}
	return text
}

// SessionRemoteText returns the name of a session's remote.
func SessionRemoteText(s control.SessionStatus) string {
	switch {
	case s.SessionRemote == "":
		return "no session remote"
	case s.Mode == control.RemoteEmbedded:
		return "this host, in " + s.SessionRemote
	}
	return s.SessionRemote
}

// ReportAll prints all errors except the first, and returns the first error.
func ReportAll(a *App, errs []error) error {
	var first error
	for _, err := range errs {
		switch {
		case err == nil:
		case first == nil:
			first = err
		default:
			PrintError(a.Stderr, control.AsError(err))
		}
	}
	return first
}

// IsPath reports whether remote is a local path and not a URL or HOST:PATH. It uses git's rules (connect.c,
// url_is_local_not_ssh).
func IsPath(remote string) bool {
	if strings.Contains(remote, "://") {
		return false
	}
	colon, slash := strings.IndexByte(remote, ':'), strings.IndexByte(remote, '/')
	return colon < 0 || slash >= 0 && slash < colon
}

// PrintMount prints the result of a mount, and on stderr which ignored files a fork has and which paths it lacks: as
// JSON with --json, and nothing with --quiet.
func PrintMount(a *App, m control.MountReply, took time.Duration) error {
	if a.Quiet {
		return nil
	}
	if a.JSON {
		return PrintJSON(a.Stdout, m)
	}
	what := []string{HeadName(m.Head, m.Ref, m.Commit)}
	if m.Files >= 0 {
		what = append(what, Plural(m.Files, "file"))
	}
	_, err := fmt.Fprintf(a.Stdout, "mounted %s at %s (%s, %s)\n", m.Remote, m.Dir, strings.Join(what, ", "),
		Seconds(took))
	printCarried(a, m.Carried, m.Receipt)
	PrintMemory(a, m.Memory)
	return err
}

// maxConversations is the maximum number of conversations that PrintMemory names.
const maxConversations = 5

// PrintMemory prints on stderr what was done with the memory of agents, the newest conversation last. It prints nothing
// with --json or --quiet.
func PrintMemory(a *App, all []control.PlacedMemory) {
	if a.JSON || a.Quiet {
		return
	}
	if all != nil && len(all) == 0 {
		fmt.Fprintln(a.Stderr, "artifactfs: the session has no memory of agents")
	}
	if n := len(all) - maxConversations; n > 0 {
		fmt.Fprintf(a.Stderr, "artifactfs: agent memory: %s more, see --json\n", Plural(int64(n), "conversation"))
		all = all[n:]
	}
	for _, p := range all {
		words := make([]string, len(p.Command))
		for i, w := range p.Command {
			words[i] = ShellWord(w)
		}
		text := strings.Join(words, " ") + " continues the conversation"
		switch {
		case p.Diverged:
			text = "kept the conversation of this host, which is not that of the session, and stores no more of it: " +
				strings.Join(words, " ") + " continues it"
		case p.Outcome == "newer":
			text = "kept the newer conversation of this host: " + strings.Join(words, " ") + " continues it"
		}
		if p.Title != "" {
			text += fmt.Sprintf(" %q", p.Title)
		}
		text += " (in " + p.Dir + ")"
		if p.Partial {
			text += "; some lines are missing: they were too large, erased or expired"
		}
		fmt.Fprintf(a.Stderr, "artifactfs: %s\n", OneLine(text))
	}
}

// RefName returns the name ref or, if it is empty, the abbreviated commit or, if that is also empty, the word "empty"
// for an empty repository.
func RefName(ref, commit string) string {
	switch {
	case ref != "":
		return ref
	case commit != "":
		return commit[:min(12, len(commit))]
	}
	return "empty"
}

// HeadName returns the branch of HEAD in a mount or, if HEAD is detached, the abbreviated commit. If HEAD is not known
// or at the mounted commit, it returns the result of RefName.
func HeadName(head, ref, commit string) string {
	if head == "" || head == commit {
		return RefName(ref, commit)
	}
	if _, err := object.ParseID(head); err == nil {
		return RefName("", head)
	}
	return head
}

// ReportChanges prints on stderr the name of the session that has the changes. The result on stdout is complete without
// this line.
func ReportChanges(a *App, m control.MountStatus, changed int64) {
	what := Plural(changed, "changed path")
	if changed == 0 {
		what = "git objects"
	}
	fmt.Fprintf(a.Stderr, "artifactfs: kept %s in session %s (%s resumes it)\n", what, m.Session.Name, ResumeCommand(m))
}
