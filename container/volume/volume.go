// Package volume translates the attributes of a volume, which container platforms pass as names and values, into
// requests to a daemon.
package volume

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/config"
)

// OnDelete states what happens to the session of a volume when the volume is deleted, if a part of the session is not
// on the session remote yet.
type OnDelete string

const (
	// DeleteWaits refuses to delete the volume until everything is on the session remote.
	DeleteWaits OnDelete = "wait"
	// DeleteKeeps deletes the volume, and keeps its session on this host until the next mount of the session pushes it.
	DeleteKeeps OnDelete = "keep"
	// DeleteDiscards deletes the volume with its session, also on the session remote. The session can be restored for 7
	// days.
	DeleteDiscards OnDelete = "discard"
)

// Volume is a volume as a platform has requested it.
type Volume struct {
	// Request is the request that mounts the volume, without the fields Dir and Nonce.
	Request  control.MountRequest
	OnDelete OnDelete
}

// Names are the values that replace {name} in the attribute session.
type Names map[string]string

// Keys of the secrets of a volume.
const (
	SecretToken        = "token"        // token for the remote
	SecretSessionToken = "sessionToken" // token for the session remote
)

// DefaultTimeout is the default of the attribute timeout: the time that reads of a volume wait for the remote. It is
// longer than that of the command line, because programs in containers usually do not try again.
const DefaultTimeout = 5 * time.Minute

// attribute describes one attribute: its help, and the function that sets it.
type attribute struct {
	set  func(v *Volume, text string) error
	help string
}

// attributes are all attributes by name.
var attributes = map[string]attribute{
	"remote": {text(func(v *Volume) *string { return &v.Request.Remote }), "URL of the repository"},
	"ref": {text(func(v *Volume) *string { return &v.Request.Ref }),
		"branch, tag, ref or commit (default: the remote's HEAD)"},
	"session": {text(func(v *Volume) *string { return &v.Request.Session }),
		"name of the session; {namespace}, {pod}, ... are replaced"},
	"sessionRemote": {text(func(v *Volume) *string { return &v.Request.SessionOptions.Remote }),
		"URL to which the session is pushed, origin or none (default: it stays on the node)"},
	"sessionPolicy": {setPolicy,
		"when checkpoints are made: idle, before-risk, interval=DURATION or off (default: idle)"},
	"sessionInclude": {list(func(v *Volume) *[]string { return &v.Request.SessionOptions.Include }),
		"comma-separated globs of ignored paths that checkpoints contain"},
	"sessionExclude": {list(func(v *Volume) *[]string { return &v.Request.SessionOptions.Exclude }),
		"comma-separated globs of paths that checkpoints leave out"},
	"takeOver": {flag(func(v *Volume) *bool { return &v.Request.SessionOptions.TakeOver }),
		"resume the session even if another host holds it (default: false)"},
	"onDelete": {choice(func(v *Volume) *OnDelete { return &v.OnDelete }, DeleteWaits, DeleteKeeps, DeleteDiscards),
		"if the session is not pushed when the volume is deleted: wait, keep it on the node, or discard it (default: wait)"},
	"via": {text(func(v *Volume) *string { return &v.Request.Via }),
		"URL of a relay through which remote is reached"},
	"readOnly": {flag(func(v *Volume) *bool { return &v.Request.ReadOnly }), "refuse writes (default: false)"},
	"gitDir": {choice(func(v *Volume) *control.GitDir { return &v.Request.GitDir }, control.GitDirInside,
		control.GitDirOutside),
		".git in the volume, or outside of it, where containers cannot use it (default: inside)"},
	"prefetch": {choice(func(v *Volume) *control.Prefetch { return &v.Request.Prefetch },
		control.PrefetchAuto, control.PrefetchAll, control.PrefetchNone),
		"contents to fetch before they are read (default: auto)"},
	"history": {choice(func(v *Volume) *control.History { return &v.Request.History },
		control.HistoryBackground, control.HistoryFull, control.HistoryNone),
		"older commits: in the background, before the container starts, or never (default: background)"},
	"wait": {choice(func(v *Volume) *control.Wait { return &v.Request.Wait }, control.WaitTree, control.WaitGit,
		control.WaitAll),
		"start the container when the tree is readable, when git works, or when the prefetch is complete (default: git if .git is in the " +
			"volume, because containers do not see mounts that are made later; else tree)"},
	"profile": {text(func(v *Volume) *string { return &v.Request.Profile }),
		"name of the read profile, or none (default: auto)"},
	"shareProfile": {flag(func(v *Volume) *bool { return &v.Request.ShareProfile }),
		"keep the read profile on the session remote too (default: false)"},
	"follow": {flag(func(v *Volume) *bool { return &v.Request.Follow }),
		"move with the branch on the remote while there are no changes; requires gitDir: outside (default: false)"},
	"submodules": {flag(func(v *Volume) *bool { return &v.Request.Submodules }),
		"mount submodules too (default: false)"},
	"redirect": {setRedirects,
		"comma-separated paths, such as node_modules, that are stored outside of the mount"},
	"uid": {id(func(v *Volume) *uint32 { return &v.Request.UID }),
		"user id of the owner of all files: runAsUser of the pod, so that git accepts the repository (default: 0)"},
	"gid": {id(func(v *Volume) *uint32 { return &v.Request.GID }),
		"group id of all files (default: fsGroup of the pod, or 0)"},
	"acl": {flag(func(v *Volume) *bool { return &v.Request.ACL }),
		"support POSIX access control lists (default: false)"},
	"timeout": {setTimeout, "longest wait of a read for the remote (default: 5m)"},
	"tokenFile": {path(func(v *Volume) *string { return &v.Request.TokenFile }),
		"path on the node of a file with the token for the remote"},
}

// Help returns a line of help for each attribute.
func Help() []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		lines = append(lines, fmt.Sprintf("%-15s %s", name, attributes[name].help))
	}
	return lines
}

// Parse returns the volume with these attributes and secrets. It returns an error for an unknown attribute, and for an
// invalid value. The text of an error contains no secret.
func Parse(given, secrets map[string]string, names Names) (Volume, error) {
	v := Volume{OnDelete: DeleteWaits}
	v.Request.AllowOther, v.Request.ExactOwner, v.Request.Passing, v.Request.IDMap = true, true, true, true
	v.Request.GitDir, v.Request.Timeout = control.GitDirInside, DefaultTimeout
	for _, name := range slices.Sorted(maps.Keys(given)) {
		a, ok := attributes[name]
		if !ok {
			return v, fmt.Errorf("unknown attribute %q; the attributes are %s", name,
				strings.Join(slices.Sorted(maps.Keys(attributes)), ", "))
		}
		if err := a.set(&v, given[name]); err != nil {
			return v, fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	for name, secret := range secrets {
		switch name {
		case SecretToken:
			v.Request.Token = control.Secret(secret)
		case SecretSessionToken:
			v.Request.SessionToken = control.Secret(secret)
		default:
			return v, fmt.Errorf("unknown secret %q; the secrets are %s and %s", name, SecretToken, SecretSessionToken)
		}
	}
	if v.Request.Wait == "" && v.Request.GitDir == control.GitDirInside {
		// wait for git in the mount request, because the bind mount of .git must exist before the container starts
		v.Request.Wait = control.WaitGit
	}
	var err error
	if v.Request.Session, err = names.expand(v.Request.Session); err != nil {
		return v, fmt.Errorf("attribute session: %w", err)
	}
	return v, v.check()
}

// check returns an error if attributes contradict each other.
func (v *Volume) check() error {
	r := &v.Request
	switch {
	case r.Remote == "" && (r.Session == "" || r.SessionOptions.Remote == ""):
		return fmt.Errorf("attribute remote is missing: it can be omitted only for an existing session of a session remote")
	case r.Follow && r.GitDir == control.GitDirInside:
		// To follow the branch, the daemon would run git with the configuration of the container's .git.
		return fmt.Errorf("attribute follow requires gitDir: outside")
	case r.ReadOnly && len(r.Redirects) > 0:
		return fmt.Errorf("attributes readOnly and redirect exclude each other")
	}
	if r.Session != "" {
		if err := r.ValidateSession(); err != nil {
			return fmt.Errorf("attribute session: %s", err.Cause)
		}
	}
	return nil
}

// expand replaces each {name} in a text by its value.
func (n Names) expand(text string) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		value, ok := n[name]
		if !closed || !ok {
			return "", fmt.Errorf("unknown name {%s}; the names are %s", name, strings.Join(slices.Sorted(maps.Keys(n)), ", "))
		}
		b.WriteString(value)
		text = after
	}
}

// text returns a function that sets a text field.
func text(field func(*Volume) *string) func(*Volume, string) error {
	return func(v *Volume, text string) error {
		*field(v) = text
		return nil
	}
}

// path returns a function that sets a field to an absolute path on the host of the daemon.
func path(field func(*Volume) *string) func(*Volume, string) error {
	return func(v *Volume, text string) error {
		if !filepath.IsAbs(text) {
			return fmt.Errorf("path %q is not absolute", text)
		}
		*field(v) = text
		return nil
	}
}

// flag returns a function that sets a field to true or false.
func flag(field func(*Volume) *bool) func(*Volume, string) error {
	return func(v *Volume, text string) (err error) {
		if *field(v), err = strconv.ParseBool(text); err != nil {
			err = fmt.Errorf("%q is neither true nor false", text)
		}
		return err
	}
}

// id returns a function that sets a field to a user or group id.
func id(field func(*Volume) *uint32) func(*Volume, string) error {
	return func(v *Volume, text string) error {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 1<<32-1 {
			return fmt.Errorf("%q is not a user or group id", text)
		}
		*field(v) = uint32(n)
		return nil
	}
}

// list returns a function that sets a field to the elements of a comma-separated list.
func list(field func(*Volume) *[]string) func(*Volume, string) error {
	return func(v *Volume, text string) error {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				*field(v) = append(*field(v), part)
			}
		}
		return nil
	}
}

// choice returns a function that sets a field to one of several words.
func choice[T ~string](field func(*Volume) *T, words ...T) func(*Volume, string) error {
	return func(v *Volume, text string) error {
		if !slices.Contains(words, T(text)) {
			return fmt.Errorf("%q is not one of %v", text, words)
		}
		*field(v) = T(text)
		return nil
	}
}

func setPolicy(v *Volume, text string) error {
	v.Request.SessionOptions.Policy = control.Policy(text) // the daemon checks the value
	return nil
}

func setRedirects(v *Volume, text string) error {
	var paths []string
	if err := list(func(*Volume) *[]string { return &paths })(v, text); err != nil {
		return err
	}
	paths, err := config.Paths(paths)
	v.Request.Redirects, v.Request.RedirectsOnly = paths, true
	return err
}

func setTimeout(v *Volume, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not a duration such as 90s", text)
	}
	v.Request.Timeout = d
	return nil
}
