// Package s3test starts a real S3 server for tests: versitygw, which stores buckets in directories. A separate Go
// module, the directory versitygw, pins the version of the server, so that the product does not depend on the server's
// dependencies. The program is built once and kept in the user's cache directory.
package s3test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/internal/disk"
)

const (
	program = "github.com/versity/versitygw/cmd/versitygw"
	// Bucket is the name of the bucket that every server has.
	Bucket = "bucket"
	// accessKey and secretKey are the credentials that every server accepts.
	accessKey, secretKey = "test-access", "test-secret"
)

// Server is an S3 server on the loopback interface.
type Server struct {
	Address string // HOST:PORT
	Dir     string // directory of the buckets
	binary  string

	mu  sync.Mutex
	cmd *exec.Cmd
}

// Start starts a server with one empty bucket. The server ends when the test ends. Start sets the environment variables
// from which package objects reads the credentials. The test is skipped if the server cannot be built because the Go
// module proxy cannot be reached.
func Start(t testing.TB) *Server {
	t.Helper()
	for name, value := range Credentials() {
		set(t, name, value)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Address: l.Addr().String(), Dir: t.TempDir(), binary: build(t)}
	l.Close()
	if err := os.Mkdir(filepath.Join(s.Dir, Bucket), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Run(t)
	t.Cleanup(s.Kill)
	return s
}

// set sets an environment variable for the duration of the test.
func set(t testing.TB, name, value string) {
	old, had := os.LookupEnv(name)
	if err := os.Setenv(name, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if had {
			os.Setenv(name, old)
		} else {
			os.Unsetenv(name)
		}
	})
}

// Credentials returns the environment variables with the credentials that every server accepts.
func Credentials() map[string]string {
	return map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey}
}

// URL returns the URL of an object store in the bucket, in the form that objects.Open accepts.
func (s *Server) URL(prefix string) string {
	return "s3://" + Bucket + "/" + prefix + "?endpoint=http://" + s.Address
}

// Run starts the server again after Kill, at the same address and with the same buckets.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	cmd := exec.Command(s.binary, "--port", s.Address, "--access", accessKey, "--secret", secretKey, "--quiet",
		"--keep-alive", "posix", s.Dir)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.Dir}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start versitygw: %v", err)
	}
	s.mu.Lock()
	s.cmd = cmd
	s.mu.Unlock()
	client := http.Client{Timeout: time.Second}
	await.Until(t, "the S3 server answers", func() bool {
		answer, err := client.Get("http://" + s.Address + "/")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return true
	})
}

// Kill ends the server with SIGKILL. It does nothing if the server is not running.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// build returns the path of the server's program. It builds the program if it is not in the cache.
func build(t testing.TB) string {
	t.Helper()
	module, err := find()
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(pinned), "github.com/versity/versitygw v")
	version := strings.Fields(rest + " ?")[0]
	cache := filepath.Join(cacheDir(), "artifactfs-tests")
	path := filepath.Join(cache, "versitygw-v"+version)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	// tests of several packages run at the same time, and the build takes minutes
	unlock, err := disk.Lock(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path
	}
	t.Logf("building versitygw %s, which takes some minutes", version)
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path+".tmp", program)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: THE S3 SERVER OF THE TESTS COULD NOT BE BUILT: %v\n%s", err, out)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// cacheDir returns the directory that contains Go's build cache. This directory also exists if tests run with a
// temporary home directory.
func cacheDir() string {
	if dir := os.Getenv("GOCACHE"); filepath.IsAbs(dir) {
		return filepath.Dir(dir)
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return dir
	}
	return os.TempDir()
}

// find returns the directory of the module versitygw. It searches from the working directory, which is the directory of
// the tested package.
func find() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		module := filepath.Join(dir, "integration/harness/s3test/versitygw")
		_, err := os.Stat(filepath.Join(module, "go.mod"))
		if err == nil {
			return module, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return "", fmt.Errorf("find module versitygw: %w", err)
		}
		dir = filepath.Dir(dir)
	}
}
