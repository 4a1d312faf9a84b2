package gitops

// A git server for tests that sync from Git.

import (
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience is how long a state may take.
const patience = 3 * time.Minute

// repository is a repository on a git server of its own, and a checkout of it. It ends with the test.
type repository struct {
	t             *testing.T
	url, checkout string
}

// newRepository serves an empty repository by git's own HTTP backend, on loopback.
func newRepository(t *testing.T) *repository {
	t.Helper()
	base := t.TempDir()
	bare := filepath.Join(base, "served", "platform.git")
	git(t, base, "init", "--bare", "--initial-branch=main", bare)
	git(t, bare, "config", "http.receivepack", "true")
	core, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(core)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Dir(bare), "GIT_HTTP_EXPORT_ALL=1"},
	})
	t.Cleanup(server.Close)
	url := server.URL + "/platform.git"
	checkout := filepath.Join(base, "checkout")
	git(t, base, "clone", "--quiet", url, checkout)
	return &repository{t, url, checkout}
}

func git(t *testing.T, folder string, arguments ...string) string {
	t.Helper()
	command := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, arguments...)...)
	command.Dir = folder
	said, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", arguments, err, said)
	}
	return strings.TrimSpace(string(said))
}

// copyFolder puts a folder of our checkout into the repository.
func (r *repository) copyFolder(folder string) {
	r.t.Helper()
	target := filepath.Join(r.checkout, folder)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.CopyFS(target, os.DirFS(filepath.Join(root, folder))); err != nil {
		r.t.Fatal(err)
	}
}

// change replaces text in a file of the repository.
func (r *repository) change(file, before, after string) {
	r.t.Helper()
	path := filepath.Join(r.checkout, file)
	text, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	if strings.Count(string(text), before) != 1 {
		r.t.Fatalf("%s must have %q once", file, before)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), before, after, 1)), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// push commits everything and pushes it.
func (r *repository) push(subject string) {
	r.t.Helper()
	git(r.t, r.checkout, "add", "--all")
	git(r.t, r.checkout, "commit", "--quiet", "--message", subject)
	git(r.t, r.checkout, "push", "--quiet", "origin", "HEAD:main")
}

// until waits for a state, and fails with the last report about it.
func until(t *testing.T, what string, reached func() (bool, string)) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Second) {
		done, report := reached()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s: %s", what, patience, report)
		}
	}
}
