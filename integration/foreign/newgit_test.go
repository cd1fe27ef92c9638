package foreign

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newGit returns the path of the git of Debian unstable, which is 2.55 or newer. Its packages are unpacked into a
// directory, with those of its libraries, and nothing is installed on the host.
func newGit(t *testing.T) string {
	t.Helper()
	dir := installed(t, "git-of-debian-unstable", func(dir, final string) error {
		root := filepath.Join(dir, "root")
		if err := errors.Join(unpackDebian(t, dir, root, "git"),
			os.RemoveAll(filepath.Join(root, "usr", "share"))); err != nil {
			return err
		}
		return wrapGit(dir, final)
	})
	return filepath.Join(dir, "bin", "git")
}

// unpackDebian unpacks a package of Debian unstable and all that it depends on into root. apt gets directories of its
// own below dir and a list of installed packages that is empty.
func unpackDebian(t *testing.T, dir, root, name string) error {
	apt := filepath.Join(dir, "apt")
	for _, d := range []string{root, filepath.Join(apt, "state/lists/partial"),
		filepath.Join(apt, "cache/archives/partial")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	defer os.RemoveAll(apt)
	// The host's own mirror is used, because it is one that can be reached.
	uris, err := output(t, "", os.Environ(), program(t, "apt-get"), "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages")
	if err != nil {
		return fmt.Errorf("find the mirror of this host: %w\n%s", err, uris)
	}
	mirror := ""
	for uri := range strings.Lines(uris) {
		if uri = strings.TrimSpace(uri); strings.HasSuffix(strings.TrimSuffix(uri, "/"), "/debian") {
			mirror = uri
			break
		}
	}
	if mirror == "" {
		return errors.New("this host has no mirror of Debian")
	}
	list := filepath.Join(apt, "sources.list")
	source := "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + mirror + " unstable main\n"
	if err := errors.Join(os.WriteFile(list, []byte(source), 0o600),
		os.WriteFile(filepath.Join(apt, "status"), nil, 0o600)); err != nil {
		return err
	}
	options := []string{"-qq"}
	for _, o := range []string{"Dir::State=" + apt + "/state", "Dir::Cache=" + apt + "/cache",
		"Dir::State::status=" + apt + "/status",
		"Dir::Etc::SourceList=" + list, "Dir::Etc::SourceParts=-", "APT::Sandbox::User=root", "Acquire::Languages=none"} {
		options = append(options, "-o", o)
	}
	for _, command := range [][]string{{"update"},
		{"install", "--download-only", "--yes", "--no-install-recommends", name}} {
		if out, err := output(t, "", os.Environ(), "apt-get",
			append(options[:len(options):len(options)], command...)...); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", command[0], err, out)
		}
	}
	packages, err := filepath.Glob(filepath.Join(apt, "cache/archives/*.deb"))
	if err != nil {
		return err
	}
	for _, p := range packages {
		if out, err := output(t, "", os.Environ(), "dpkg-deb", "--extract", p, root); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", filepath.Base(p), err, out)
		}
	}
	return nil
}

// wrapGit writes scripts to dir/bin that run the programs of git below dir/root, which will be final/root. They are
// newer than the host's C library, so they run with the dynamic linker and the libraries of their own packages.
func wrapGit(dir, final string) error {
	linkers, err := filepath.Glob(filepath.Join(dir, "root/usr/lib/*/ld-linux-*.so.*"))
	if err != nil || len(linkers) != 1 {
		return fmt.Errorf("find the dynamic linker: got %q, %w", linkers, err)
	}
	linker := final + strings.TrimPrefix(linkers[0], dir)
	core, bin := filepath.Join(dir, "root/usr/lib/git-core"), filepath.Join(dir, "bin")
	entries, err := os.ReadDir(core)
	if err == nil {
		err = os.Mkdir(bin, 0o700)
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(core, e.Name()), filepath.Join(bin, e.Name())
		if e.Type()&os.ModeSymlink != 0 { // to "git" in the same directory
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(filepath.Base(target), to)
			}
			if err != nil {
				return err
			}
			continue
		}
		if e.IsDir() {
			continue
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(text, []byte("\x7fELF")) {
			text = fmt.Appendf(nil,
				"#!/bin/sh\nexport GIT_EXEC_PATH='%s'\nexec '%s' --argv0 \"$0\" --library-path '%s' '%s' \"$@\"\n",
				filepath.Join(final, "bin"), linker, filepath.Dir(linker), final+strings.TrimPrefix(from, dir))
		}
		if err := os.WriteFile(to, text, 0o700); err != nil {
			return err
		}
	}
	return nil
}
