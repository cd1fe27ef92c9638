package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// Kernel describes the FUSE implementation of the running kernel.
type Kernel struct {
	Major, Minor uint32 // version of the FUSE protocol
	// whether the kernel can resend unanswered requests (Linux 6.9), so that a mount can be taken over
	Resend bool
	Lacks  []string // names of the optional features that the kernel does not have, for display
}

// optionalFeatures lists kernel features that make a mount faster, but that a mount does not require.
var optionalFeatures = []struct {
	capability uint64
	name       string
}{
	{raw.CAP_NO_OPEN_SUPPORT, "open without a request"},
	{raw.CAP_NO_OPENDIR_SUPPORT, "opendir without a request"}, {raw.CAP_PARALLEL_DIROPS, "parallel lookups"},
	{raw.CAP_READDIRPLUS, "readdirplus"}, {raw.CAP_CACHE_SYMLINKS, "cached symbolic links"},
	{raw.CAP_EXPLICIT_INVAL_DATA, "explicit cache invalidation"},
	{raw.CAP_HANDLE_KILLPRIV_V2, "writes without a capability check"},
}

// Probe mounts at a new directory below dir and unmounts immediately, to find out whether mounting works and which
// features the kernel has. It answers no request of that mount.
func Probe(dir string) (k Kernel, err error) {
	at, err := os.MkdirTemp(dir, "artifactfs-probe-")
	if err != nil {
		return k, fmt.Errorf("mount a test file system: %w", err)
	}
	defer func() {
		if removeErr := os.Remove(at); err == nil && removeErr != nil {
			err = fmt.Errorf("mount a test file system: %w", removeErr)
		}
	}()
	if at, err = filepath.EvalSymlinks(at); err != nil {
		return k, fmt.Errorf("mount a test file system: %w", err)
	}
	d, err := Attach(at, Options{FsName: "artifactfs-probe", ReadOnly: true})
	if err != nil {
		return k, err
	}
	in, err := d.hello()
	s := &Server{dir: at, device: d, ended: make(chan struct{})}
	// Close the device before the mount is removed, so that a process that uses the directory at this moment gets an error
	// instead of waiting for an answer.
	err = errors.Join(err, d.file.Close(), s.detach())
	if err != nil {
		return k, fmt.Errorf("mount a test file system: %w", err)
	}
	k = Kernel{Major: in.Major, Minor: in.Minor, Resend: d.CanMove()}
	for _, w := range optionalFeatures {
		if in.Flags64()&w.capability == 0 {
			k.Lacks = append(k.Lacks, w.name)
		}
	}
	return k, nil
}

// String returns the protocol version and the features in one line, for display.
func (k Kernel) String() string {
	text := fmt.Sprintf("protocol %d.%d", k.Major, k.Minor)
	if k.Resend {
		text += ", mounts outlive their process"
	}
	if len(k.Lacks) > 0 {
		text += ", without " + strings.Join(k.Lacks, ", ")
	}
	return text
}
