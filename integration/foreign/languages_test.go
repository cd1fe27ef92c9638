package foreign

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// source returns the path of a file in testdata.
func source(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The suite runs with clients in several languages.
func TestDulwich(t *testing.T) { t.Parallel(); suite(t, dulwich(t)) }

func TestJGit(t *testing.T) { t.Parallel(); suite(t, jgit(t)) }

func TestLibgit2(t *testing.T) { t.Parallel(); suite(t, libgit2(t)) }

// TestIsomorphicGit runs the suite with isomorphic-git, in JavaScript.
func TestIsomorphicGit(t *testing.T) {
	t.Parallel()
	node := program(t, "node")
	modules := npm(t, "isomorphic-git")
	dir := t.TempDir()
	// Node.js finds modules in the directory of the program.
	if err := os.Symlink(filepath.Join(modules, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(source(t, "isomorphic-git.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "client.mjs"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	suite(t, programmed(t, dir, nil, node, filepath.Join(dir, "client.mjs")))
}

// dulwich returns the client dulwich, in Python, from Debian.
func dulwich(t *testing.T) implementation {
	const python = "/usr/bin/python3" // Debian's packages are installed for the Python of Debian only
	if out, err := output(t, "", os.Environ(), python, "-c", "import dulwich"); err != nil {
		gittest.Skip(t, "dulwich: %v: %s (scripts/setup.sh installs python3-dulwich)", err, out)
	}
	return programmed(t, t.TempDir(), nil, python, source(t, "dulwich_client.py"))
}

// jgit returns the client JGit, in Java, from Debian, whose version 4.11 has no shallow clones.
func jgit(t *testing.T) implementation {
	javac, java := program(t, "javac"), program(t, "java")
	var jars []string
	for _, jar := range []string{"org.eclipse.jgit", "slf4j-api", "slf4j-nop", "jsch", "javaewah"} {
		path := "/usr/share/java/" + jar + ".jar"
		if _, err := os.Stat(path); err != nil {
			gittest.Skip(t, "JGit: %v (scripts/setup.sh installs libjgit-java)", err)
		}
		jars = append(jars, path)
	}
	dir := t.TempDir()
	if out, err := output(t, dir, os.Environ(), javac, "-cp", strings.Join(jars, ":"), "-d", dir,
		source(t, "JGit.java")); err != nil {
		t.Fatalf("javac: %v: %s", err, out)
	}
	class := strings.Join(append(jars, dir), ":")
	return programmed(t, dir, []string{"depth"}, java, "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", class, "JGit")
}

// libgit2 returns the client libgit2, in C, from Debian, whose version 1.5 has no shallow clones.
func libgit2(t *testing.T) implementation {
	gcc := program(t, "gcc")
	if _, err := os.Stat("/usr/include/git2.h"); err != nil {
		gittest.Skip(t, "libgit2: %v (scripts/setup.sh installs libgit2-dev)", err)
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "client")
	if out, err := output(t, dir, gittest.Env(), gcc, "-Wall", "-Werror", "-o", binary, source(t, "libgit2.c"),
		"-lgit2"); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	return programmed(t, dir, []string{"depth"}, binary)
}

// TestGoGit runs the suite with go-git, in Go. The program that uses it is a separate module.
func TestGoGit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary := filepath.Join(dir, "client")
	if out, err := output(t, source(t, "go-git"), os.Environ(), "go", "build", "-o", binary, "."); err != nil {
		gittest.Skip(t, "go-git: %v: %s", err, out)
	}
	suite(t, programmed(t, dir, nil, binary))
}
