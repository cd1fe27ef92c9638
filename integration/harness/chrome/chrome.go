// Package chrome lets tests control a headless Chromium through the DevTools protocol. The browser reads commands from
// a pipe, so it needs no port. Each tab has its own cookies, so tests that share a browser do not affect each other.
package chrome

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Browser is a running Chromium. It may be used from any goroutine.
//
// Locks: mu is a leaf.
type Browser struct {
	dir   string // has the files of the browser
	in    *os.File
	close func() // ends the browser

	mu    sync.Mutex
	last  int                   // number of the last command that was sent
	wait  map[int]chan<- answer // channels for the answers of commands, by number of the command
	tabs  map[string]*Tab       // tabs by the session ID of the protocol
	ended error                 // reason why the browser sends no more answers; nil while it runs
}

// answer is the result of a command.
type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// message is a message of the browser: the answer to a command, or an event.
type message struct {
	ID        int
	SessionID string `json:"sessionId"`
	Method    string
	Params    json.RawMessage
	answer
}

// shared is the browser of all tests that run at present: its start takes longer than most tests.
var shared struct {
	sync.Mutex
	b     *Browser // nil: none
	users int      // number of tests that use b
}

// Start returns a browser that tests share. It ends when the last of them ends. The test is skipped if Chromium is not
// installed.
func Start(t testing.TB) *Browser {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.b == nil {
		shared.b = start(t)
	}
	b := shared.b
	shared.users++
	t.Cleanup(func() {
		shared.Lock()
		defer shared.Unlock()
		if t.Failed() {
			t.Logf("standard error of chromium: %.2000s", b.stderr())
		}
		if shared.users--; shared.users == 0 {
			b.close()
			shared.b = nil
		}
	})
	return b
}

// start starts a browser.
func start(t testing.TB) *Browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		gittest.Skip(t, "%v (apt-get install chromium)", err)
	}
	dir, err := os.MkdirTemp("", "chrome")
	if err != nil {
		t.Fatal(err)
	}
	commands, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-extensions",
		"--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir="+dir, "about:blank")
	cmd.ExtraFiles = []*os.File{commands, answers} // these become the descriptors 3 and 4 of the browser
	cmd.Stderr = log
	// the browser also writes to ~/.config, which it makes unreadable for other users of the same home directory
	cmd.Env = append(os.Environ(), "HOME="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	commands.Close()
	answers.Close()
	log.Close()
	b := &Browser{dir: dir, in: in, wait: map[int]chan<- answer{}, tabs: map[string]*Tab{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(out)
	}()
	b.close = func() {
		// no process of the browser may write to its directory while it is removed
		_ = b.call("", "Browser.close", nil, nil)
		in.Close()
		<-read
		stop()
		_ = cmd.Wait() // the exit status of a killed process is ignored
		out.Close()
		_ = os.RemoveAll(dir)
	}
	return b
}

// stderr returns what the browser has printed, without errors about D-Bus, because tests run without it.
func (b *Browser) stderr() string {
	text, _ := os.ReadFile(filepath.Join(b.dir, "stderr"))
	return strings.Join(slices.DeleteFunc(strings.Split(string(text), "\n"),
		func(l string) bool { return strings.Contains(l, "dbus") }), "\n")
}

// read receives the messages of the browser, and passes answers and events on, until the browser ends.
func (b *Browser) read(out *os.File) {
	r := bufio.NewReaderSize(out, 1<<20)
	for {
		text, err := r.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m)
		}
		b.mu.Lock()
		switch {
		case err != nil:
			b.ended = fmt.Errorf("read from chromium: %w", err)
			for _, c := range b.wait {
				close(c)
			}
			b.mu.Unlock()
			return
		case m.ID != 0:
			if c := b.wait[m.ID]; c != nil {
				c <- m.answer // does not block, because the channel is buffered
				delete(b.wait, m.ID)
			}
		case b.tabs[m.SessionID] != nil:
			b.tabs[m.SessionID].event(m)
		}
		b.mu.Unlock()
	}
}

// call sends a command to the browser and decodes the result, unless result is nil. If session is not "", the command
// is for the tab with this session ID.
func (b *Browser) call(session, method string, params, result any) error {
	c := make(chan answer, 1)
	b.mu.Lock()
	if err := b.ended; err != nil {
		b.mu.Unlock()
		return err
	}
	b.last++
	id := b.last
	b.wait[id] = c
	command := map[string]any{"id": id, "method": method}
	if params != nil {
		command["params"] = params
	}
	if session != "" {
		command["sessionId"] = session
	}
	text, err := json.Marshal(command)
	if err == nil {
		_, err = b.in.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	a, ok := <-c
	switch {
	case !ok:
		return fmt.Errorf("%s: %w", method, errEnded)
	case a.Error != nil:
		return fmt.Errorf("%s: %s", method, a.Error.Message)
	case result == nil:
		return nil
	}
	return json.Unmarshal(a.Result, result)
}

var errEnded = errors.New("chromium has ended")

// Tab opens an empty tab with its own cookies. At the end of the test, messages of the tab's console are reported as
// failures, except for messages that Console has already returned.
func (b *Browser) Tab(t testing.TB) *Tab {
	t.Helper()
	tab := &Tab{T: t, b: b}
	var made struct{ BrowserContextID, TargetID, SessionID string }
	tab.must(b.call("", "Target.createBrowserContext", nil, &made))
	tab.must(b.call("", "Target.createTarget", map[string]any{"url": "about:blank",
		"browserContextId": made.BrowserContextID}, &made))
	tab.must(b.call("", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made))
	tab.session = made.SessionID
	b.mu.Lock()
	b.tabs[tab.session] = tab
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		tab.Call(domain+".enable", nil, nil)
	}
	t.Cleanup(func() {
		// an error is ignored, because the browser may have ended
		_ = b.call("", "Target.disposeBrowserContext", map[string]any{"browserContextId": made.BrowserContextID}, nil)
		for _, line := range tab.Console() {
			t.Errorf("console of the browser: %s", line)
		}
	})
	return tab
}

// Tab is a tab of a browser. Its methods end the test if they fail. They must be called from the goroutine of the test.
type Tab struct {
	T       testing.TB
	b       *Browser
	session string

	// The following fields are protected by Browser.mu.
	console []string
	loaded  int // number of pages that were loaded so far
}

// event processes an event of the tab. The caller holds Browser.mu.
func (t *Tab) event(m message) {
	var p struct {
		Type             string // kind of a console message, such as "error"
		Args             []struct{ Value any }
		Entry            struct{ Level, Text, URL string }
		ExceptionDetails struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	if json.Unmarshal(m.Params, &p) != nil {
		return
	}
	switch m.Method {
	case "Page.loadEventFired":
		t.loaded++
	case "Runtime.consoleAPICalled":
		t.console = append(t.console, fmt.Sprint(p.Type, " ", p.Args))
	case "Runtime.exceptionThrown":
		t.console = append(t.console, p.ExceptionDetails.Text+" "+p.ExceptionDetails.Exception.Description)
	case "Log.entryAdded":
		t.console = append(t.console, p.Entry.Level+" "+p.Entry.Text+" "+p.Entry.URL)
	}
}

func (t *Tab) must(err error) {
	t.T.Helper()
	if err != nil {
		t.T.Fatalf("chromium: %v", err)
	}
}

// Call sends a command of the protocol to the tab, and decodes the result, unless result is nil.
func (t *Tab) Call(method string, params, result any) {
	t.T.Helper()
	t.must(t.b.call(t.session, method, params, result))
}

// Console returns the messages of the console since the last call of Console: messages of scripts, exceptions, and
// messages of the browser, for example about failed requests or violations of a content security policy.
func (t *Tab) Console() []string {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	lines := t.console
	t.console = nil
	return lines
}

// Open opens a URL and waits until the page is loaded.
func (t *Tab) Open(url string) {
	t.T.Helper()
	t.Loads(func() {
		var r struct{ ErrorText string }
		t.Call("Page.navigate", map[string]any{"url": url}, &r)
		if r.ErrorText != "" {
			t.T.Fatalf("open %s: %s", url, r.ErrorText)
		}
	})
}

// Loads calls do, which must make the tab load a page, and waits until the page is loaded.
func (t *Tab) Loads(do func()) {
	t.T.Helper()
	count := func() int {
		t.b.mu.Lock()
		defer t.b.mu.Unlock()
		return t.loaded
	}
	before := count()
	do()
	await.Until(t.T, "the browser has loaded the next page", func() bool { return count() > before })
}

// Cookie sets a cookie for a URL.
func (t *Tab) Cookie(url, name, value string) {
	t.T.Helper()
	t.Call("Network.setCookie", map[string]any{"url": url, "name": name, "value": value, "httpOnly": true,
		"sameSite": "Strict"}, nil)
}

// Resize sets the size of the window in pixels.
func (t *Tab) Resize(width, height int) {
	t.T.Helper()
	t.Call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Scheme sets the color scheme that the browser reports as the user's preference: "light" or "dark".
func (t *Tab) Scheme(scheme string) {
	t.T.Helper()
	t.Call("Emulation.setEmulatedMedia",
		map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// eval evaluates a JavaScript expression and decodes its value. If the value is a promise, eval waits for its result.
func (t *Tab) eval(expression string, value any) error {
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	params := map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}
	if err := t.b.call(t.session, "Runtime.evaluate", params, &r); err != nil {
		return err
	}
	if e := r.ExceptionDetails; e != nil {
		return fmt.Errorf("evaluate %.200s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(r.Result.Value, value)
}

// Eval evaluates a JavaScript expression, and decodes its value unless value is nil. If the value is a promise, Eval
// waits for its result.
func (t *Tab) Eval(expression string, value any) {
	t.T.Helper()
	t.must(t.eval(expression, value))
}

// Text evaluates a JavaScript expression and returns its value, which must be a string.
func (t *Tab) Text(expression string) (text string) {
	t.T.Helper()
	t.Eval(expression, &text)
	return text
}

// Until waits until a JavaScript expression is true. The tab may load pages in the meantime.
func (t *Tab) Until(expression string) {
	t.T.Helper()
	await.Until(t.T, expression, func() (yes bool) {
		return t.eval("Boolean("+expression+")", &yes) == nil && yes // an error means that the tab is loading another page
	})
}

// Click clicks the first element that matches a CSS selector.
func (t *Tab) Click(selector string) {
	t.T.Helper()
	quoted, err := json.Marshal(selector)
	t.must(err)
	t.Eval(`document.querySelector(`+string(quoted)+`).click()`, nil)
}

// keys maps the names of keys that are not characters to their key codes.
var keys = map[string]int{"Tab": 9, "Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40}

// Press presses a key: a character, or one of Tab, Enter, Escape, ArrowUp and ArrowDown.
func (t *Tab) Press(key string) {
	t.T.Helper()
	params := map[string]any{"type": "keyDown", "key": key}
	if code, ok := keys[key]; ok {
		params["windowsVirtualKeyCode"], params["code"] = code, key
		if key == "Enter" {
			params["text"] = "\r"
		}
	} else {
		params["text"] = key
	}
	t.Call("Input.dispatchKeyEvent", params, nil)
	params["type"] = "keyUp"
	delete(params, "text")
	t.Call("Input.dispatchKeyEvent", params, nil)
}

// Picture writes a screenshot of the window to a file.
func (t *Tab) Picture(path string) {
	t.T.Helper()
	var r struct{ Data []byte }
	t.Call("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	t.must(os.WriteFile(path, r.Data, 0o644))
}
