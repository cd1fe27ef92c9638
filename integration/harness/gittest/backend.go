package gittest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// backend answers one request by running git http-backend through the CGI interface (RFC 3875). It does the same as
// net/http/cgi, but runs git in a process group. cgi.Handler would kill only http-backend, and its child pack-objects
// would continue without a reader.
type backend struct {
	s    *Server
	path string
}

// run sends body to git and writes git's answer to out. Before the first byte it calls head with the status and the
// header. If ctx ends or a write to out fails, run kills the processes and returns an error. A push continues instead, as
// on most servers: a killed process would leave the lock files of the refs that it was about to update.
func (b *backend) run(ctx context.Context, r *http.Request, body io.Reader, env []string,
	head func(status int, h http.Header), out io.Writer) error {
	cmd := exec.Command(b.path)
	cmd.Dir, cmd.Stderr = b.s.root, b.s.stderr
	cmd.Env = append(append(b.s.env(), cgiEnv(b.s.root, r)...), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("run http-backend: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		stdin.Close()
		return fmt.Errorf("run http-backend: %w", err)
	}
	if err := b.s.group.start(cmd); err != nil {
		return err
	}
	var writer sync.WaitGroup
	writer.Go(func() {
		io.Copy(stdin, body) // an error is ignored, because git may answer before it has read the whole body
		stdin.Close()
	})
	push := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/git-receive-pack")
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		if !push {
			b.s.group.kill(cmd)
		}
		close(killed)
	})
	err = answer(bufio.NewReaderSize(stdout, 64<<10), head, out)
	switch {
	case err != nil && push:
		_, _ = io.Copy(io.Discard, stdout)
	case err != nil:
		b.s.group.kill(cmd)
	}
	// After wait has returned, another process may get the process ID, so kill must not run any more.
	if !stop() {
		<-killed
	}
	b.s.group.wait(cmd)
	writer.Wait()
	return err
}

// answer parses a CGI response, passes the status and the header to head, and copies the body to out.
func answer(r *bufio.Reader, head func(int, http.Header), out io.Writer) error {
	h, err := textproto.NewReader(r).ReadMIMEHeader()
	if err != nil {
		return fmt.Errorf("read header of http-backend: %w", noEOF(err))
	}
	status := http.StatusOK
	if line := h.Get("Status"); line != "" {
		code, _, _ := strings.Cut(line, " ")
		if status, err = strconv.Atoi(code); err != nil {
			return fmt.Errorf("read status of http-backend: %w", err)
		}
		h.Del("Status")
	}
	head(status, http.Header(h))
	_, err = r.WriteTo(out)
	return err
}

func cgiEnv(root string, r *http.Request) []string {
	host, port, _ := net.SplitHostPort(r.RemoteAddr)
	env := []string{
		"GATEWAY_INTERFACE=CGI/1.1", "SERVER_PROTOCOL=" + r.Proto, "SERVER_SOFTWARE=gittest",
		"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1",
		"REQUEST_METHOD=" + r.Method, "PATH_INFO=" + r.URL.Path, "QUERY_STRING=" + r.URL.RawQuery,
		"REMOTE_ADDR=" + host, "REMOTE_PORT=" + port, "CONTENT_TYPE=" + r.Header.Get("Content-Type"),
	}
	if r.ContentLength >= 0 {
		env = append(env, "CONTENT_LENGTH="+strconv.FormatInt(r.ContentLength, 10))
	}
	for name, variable := range map[string]string{"Content-Encoding": "HTTP_CONTENT_ENCODING",
		"Git-Protocol": "GIT_PROTOCOL", "Accept-Encoding": "HTTP_ACCEPT_ENCODING"} {
		if v := r.Header.Get(name); v != "" {
			env = append(env, variable+"="+v)
		}
	}
	return env
}

// env returns the environment of the server's git processes. A global configuration file contains default settings for
// the repositories. Settings that override those of the repositories are passed by GIT_CONFIG_COUNT.
func (s *Server) env() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.home, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + filepath.Join(s.home, "gitconfig"), "GIT_CONFIG_COUNT=" + strconv.Itoa(len(s.config))}
	if path := os.Getenv("GIT_EXEC_PATH"); path != "" {
		env = append(env, "GIT_EXEC_PATH="+path)
	}
	for i, c := range s.config {
		key, value, _ := strings.Cut(c, "=")
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, value))
	}
	return env
}

// noFilterEnv returns variables that turn off filters. They are appended to the result of env, and replace its
// GIT_CONFIG_COUNT, because the last value of a variable is used.
func (s *Server) noFilterEnv() []string {
	n := len(s.config)
	return []string{"GIT_CONFIG_COUNT=" + strconv.Itoa(n+1), fmt.Sprintf("GIT_CONFIG_KEY_%d=uploadpack.allowFilter", n),
		fmt.Sprintf("GIT_CONFIG_VALUE_%d=false", n)}
}

// globalConfig is a git configuration that allows partial clones of every repository below Root, even if another user
// owns the repository.
const globalConfig = `[safe]
	directory = *
[uploadpack]
	allowFilter = true
	allowAnySHA1InWant = true
[gc]
	auto = 0
`

// readAsk reads a request to git-upload-pack. It returns the body as it was sent, and the parsed request.
func readAsk(r *http.Request) (sent []byte, asked Request, err error) {
	if sent, err = readAtMost(r.Body, maxAsk); err != nil {
		return nil, asked, fmt.Errorf("read request: %w", err)
	}
	plain := sent
	if e := r.Header.Get("Content-Encoding"); e == "gzip" || e == "x-gzip" {
		if plain, err = gunzip(bytes.NewReader(sent)); err != nil {
			return nil, asked, fmt.Errorf("read request: %w", err)
		}
	}
	return sent, parseAsk(plain), nil
}

// repoDir returns the directory of the repository with the given name in a URL, which it finds as http-backend does.
func (b *backend) repoDir(name string) string {
	dir := filepath.Join(b.s.root, filepath.FromSlash(name))
	if _, err := os.Stat(dir); err != nil {
		return dir + ".git"
	}
	return dir
}
