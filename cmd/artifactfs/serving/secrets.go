package serving

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// HideSecrets overwrites the secrets in the arguments and the environment of this process. Otherwise /proc would show
// these secrets to the command ps and to child processes as long as the process runs. os.Args and os.Environ keep their
// values.
func HideSecrets() {
	given := func(s string) bool { return len(Hidden(s)) > 0 }
	if !slices.ContainsFunc(os.Args, given) && !slices.ContainsFunc(os.Environ(), given) {
		return
	}
	args := make([]string, len(os.Args))
	for i, arg := range os.Args {
		args[i] = strings.Clone(arg) // os.Args points to the memory that is overwritten; os.Environ has returned a copy
	}
	os.Args = args
	// Log the error but continue, because it only means that the secrets stay visible.
	if err := overwriteSecrets(); err != nil {
		fmt.Fprintf(os.Stderr, "artifactfs: hide secrets from the process list: %v\n", err)
	}
}

// overwriteSecrets replaces the secrets in the argument area by asterisks, through /proc/self/mem.
func overwriteSecrets() error {
	start, end, err := argumentArea()
	if err != nil {
		return err
	}
	mem, err := proc.Self.Memory(os.O_RDWR)
	if err != nil {
		return err
	}
	defer mem.Close()
	area := make([]byte, end-start)
	if _, err := mem.ReadAt(area, start); err != nil {
		return err
	}
	// The area consists of strings that each end in a NUL byte.
	at := start
	for s := range strings.SplitSeq(string(area), "\x00") {
		for _, r := range Hidden(s) {
			if _, err := mem.WriteAt(bytes.Repeat([]byte{'*'}, r.To-r.From), at+int64(r.From)); err != nil {
				return err
			}
		}
		at += int64(len(s)) + 1
	}
	return nil
}

// Range is a range of bytes of a text that is not empty: from From until before To.
type Range struct{ From, To int }

// Hidden returns the ranges of bytes that must be hidden in s, which is an argument or an environment variable in the
// form NAME=VALUE. For a variable that contains a token, the range is the value. For an http URL, it is USER:PASSWORD,
// because a token may be in the place of the user. For any other URL, it is the password. s may contain several URLs.
func Hidden(s string) (all []Range) {
	for _, name := range []string{cli.TokenVariable, cli.SessionTokenVariable, cli.ServerTokenVariable,
		cli.ForgeTokenVariable} {
		if strings.HasPrefix(s, name+"=") {
			if len(s) > len(name)+1 {
				all = append(all, Range{len(name) + 1, len(s)})
			}
			return all
		}
	}
	for at := 0; ; {
		i := strings.Index(s[at:], "://")
		if i < 0 {
			return all
		}
		scheme := strings.ToLower(s[at : at+i])
		from := at + i + len("://")
		rest := s[from:]
		if i := strings.IndexAny(rest, "/?#"); i >= 0 {
			rest = rest[:i]
		}
		to := from + max(0, strings.LastIndexByte(rest, '@'))
		if at = to; !strings.HasSuffix(scheme, "http") && !strings.HasSuffix(scheme, "https") {
			colon := strings.IndexByte(s[from:to], ':')
			if colon < 0 {
				continue
			}
			from += colon + 1
		}
		if from < to {
			all = append(all, Range{from, to})
		}
	}
}

// argumentArea returns the addresses between which the kernel has stored the arguments, followed by the environment.
func argumentArea() (start, end int64, err error) {
	stat, err := proc.Self.Stat()
	if err == nil && (stat.ArgStart <= 0 || stat.EnvEnd < stat.ArgStart) {
		err = fmt.Errorf("read stat of this process: invalid argument area from %d to %d", stat.ArgStart, stat.EnvEnd)
	}
	return stat.ArgStart, stat.EnvEnd, err
}

// KeepMemory makes the process undumpable: its memory, which contains secrets, then does not appear in core files, and
// other processes of the user cannot read it.
func KeepMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return nil
}
