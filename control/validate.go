package control

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// validate returns an error if no daemon could carry out the request. Both the client and the daemon call validate.
func (r MountRequest) validate() error {
	if r.Session != "" {
		if err := r.ValidateSession(); err != nil {
			return err
		}
	}
	switch {
	case r.Second != "" && !(filepath.IsAbs(r.Second) && filepath.IsAbs(r.Dir)):
		return badRequest("directories %q and %q must be absolute", r.Second, r.Dir)
	case r.Second != "":
		return nil
	case r.Remote == "" && (r.Session == "" || !r.SessionOptions.elsewhere()):
		return badRequest("remote is missing")
	case !filepath.IsAbs(r.Dir):
		return badRequest("directory %q is not absolute", r.Dir)
	case r.Through != "" && !strings.HasPrefix(r.Through, proc.Root):
		return badRequest("invalid path %q to a directory of another process", r.Through)
	case r.GitDir != "" && r.GitDir != GitDirOutside && r.GitDir != GitDirInside:
		return badRequest("unknown location %q of the git directory", r.GitDir)
	case r.History != HistoryBackground && r.History != HistoryFull && r.History != HistoryNone:
		return badRequest("unknown history %q", r.History)
	case r.Prefetch != PrefetchAuto && r.Prefetch != PrefetchAll && r.Prefetch != PrefetchNone:
		return badRequest("unknown prefetch %q", r.Prefetch)
	case r.Wait != WaitTree && r.Wait != WaitGit && r.Wait != WaitAll:
		return badRequest("unknown state %q to wait for", r.Wait)
	case r.PrefetchBudget < 0 || r.CacheSize < 0 || r.Timeout < 0:
		return badRequest("size or time is negative")
	case r.StoreFrom != "" && !filepath.IsAbs(r.StoreFrom):
		return badRequest("state directory %q of another daemon is not absolute", r.StoreFrom)
	case r.TokenFile != "" && !filepath.IsAbs(r.TokenFile):
		return badRequest("token file %q is not absolute", r.TokenFile)
	case r.Selection.Validate() != nil:
		return badRequest("%v", r.Selection.Validate())
	}
	if err := r.NewGit.validate(); err != nil {
		return err
	}
	return r.SessionOptions.validate()
}

// maxSession is the maximum length of a session's name in bytes. The name is also the name of a directory.
const maxSession = 128

// ValidSession returns an error if name is not a valid name of a session. A valid name can be used as a file name on
// every system. MountRequest.ValidateSession checks more.
func ValidSession(name string) *Error {
	switch {
	case name == "":
		return badRequest("session name is empty")
	case len(name) > maxSession:
		return badRequest("session name has %d bytes, limit is %d", len(name), maxSession)
	case !refname.Plain(name):
		return badRequest("invalid session name %q: want letters, digits, dots, dashes and underscores, with a letter or digit first", name)
	}
	return nil
}

// ValidateSession returns an error unless the name of the session is valid. The name of a session that has checkpoints
// must also be a component of the name of a ref.
func (r MountRequest) ValidateSession() *Error {
	if err := ValidSession(r.Session); err != nil {
		return err
	}
	if r.SessionOptions.Remote != RemoteNone && !refname.PlainComponent(r.Session) {
		return badRequest("invalid session name %q: git allows neither \"..\" in the name of a ref, nor \".\" or \".lock\" at its end", r.Session)
	}
	return nil
}

func (r UnmountRequest) validate() error {
	if !filepath.IsAbs(r.Dir) {
		return badRequest("directory %q is not absolute", r.Dir)
	}
	return nil
}

func (r UpgradeRequest) validate() error {
	if !filepath.IsAbs(r.Executable) {
		return badRequest("executable %q is not absolute", r.Executable)
	}
	return nil
}

func (r SwitchRequest) validate() error {
	switch {
	case !filepath.IsAbs(r.Dir):
		return badRequest("directory %q is not absolute", r.Dir)
	case r.Ref == "" && r.Create == "" && !r.Detach:
		return badRequest("branch or commit is missing")
	case r.Create != "" && r.Detach:
		return badRequest("new branch and detached HEAD exclude each other")
	}
	return nil
}

// unsupported returns an error for a request that a daemon of another version might carry out.
func unsupported(format string, args ...any) *Error {
	e := badRequest(format, args...)
	e.Kind = CodeUnsupported
	return e
}

// badRequest returns an error for a request that no daemon can carry out.
func badRequest(format string, args ...any) *Error {
	return &Error{Code: ExitUsage, Verb: "read", Object: "request", Cause: fmt.Sprintf(format, args...)}
}
