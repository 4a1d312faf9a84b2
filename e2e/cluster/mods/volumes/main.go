// volumes provisions PersistentVolumes of one StorageClass as folders of this machine, for a one-node test cluster.
//
// A claim that waits for its first consumer and has been given a node gets a `local` volume (not hostPath: the kubelet
// applies fsGroup to local volumes only) bound to it beforehand. A volume whose claim is gone goes with its folder.
// Limits: the size is not enforced; every "node" keeps its folders here, which is right for one real node and for fake ones.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const selectedNode = "volume.kubernetes.io/selected-node"

type provisioner struct {
	client             kubernetes.Interface
	class, driver, dir string
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "path of the kubeconfig")
	p := provisioner{}
	flag.StringVar(&p.class, "class", "standard", "name of the StorageClass to serve")
	flag.StringVar(&p.driver, "provisioner", "spillway.dev/e2e-local", "the StorageClass's provisioner")
	flag.StringVar(&p.dir, "dir", "", "folder that holds the volumes")
	flag.Parse()
	if !filepath.IsAbs(p.dir) {
		log.Fatal("-dir must be an absolute path")
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	p.client = kubernetes.NewForConfigOrDie(config)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	// A resync repeats what failed.
	factory := informers.NewSharedInformerFactory(p.client, 30*time.Second)
	claims, volumes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes()
	dirty := make(chan struct{}, 1)
	mark := func() {
		select {
		case dirty <- struct{}{}:
		default:
		}
	}
	for _, i := range []cache.SharedIndexInformer{claims.Informer(), volumes.Informer()} {
		i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { mark() }, UpdateFunc: func(any, any) { mark() }, DeleteFunc: func(any) { mark() },
		})
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	log.Printf("serving class %s in %s", p.class, p.dir)
	for {
		select {
		case <-ctx.Done():
			return
		case <-dirty:
		}
		all, _ := claims.Lister().List(labels.Everything())
		for _, c := range all {
			p.provision(ctx, c)
		}
		existing, _ := volumes.Lister().List(labels.Everything())
		for _, v := range existing {
			p.reclaim(ctx, v)
		}
	}
}

// provision makes the volume of a waiting claim. Its name comes from the claim's UID, so a second try finds the first.
func (p *provisioner) provision(ctx context.Context, c *corev1.PersistentVolumeClaim) {
	node := c.Annotations[selectedNode]
	if c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != p.class || c.Spec.VolumeName != "" || node == "" || c.DeletionTimestamp != nil {
		return
	}
	name := "pvc-" + string(c.UID)
	path := filepath.Join(p.dir, name)
	// Open to every user: a pod without fsGroup must be able to write too. umask would take the bits away from Mkdir.
	if err := os.MkdirAll(path, 0o777); err != nil {
		log.Printf("claim %s/%s: %v", c.Namespace, c.Name, err)
		return
	}
	if err := os.Chmod(path, 0o777); err != nil {
		log.Printf("claim %s/%s: %v", c.Namespace, c.Name, err)
		return
	}
	mode := corev1.PersistentVolumeFilesystem
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": p.driver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   c.Spec.AccessModes,
			VolumeMode:                    &mode,
			StorageClassName:              p.class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: c.UID,
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
	switch _, err := p.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); {
	case err == nil:
		log.Printf("claim %s/%s: made volume %s", c.Namespace, c.Name, name)
	case !errors.IsAlreadyExists(err):
		log.Printf("claim %s/%s: %v", c.Namespace, c.Name, err)
	}
}

// reclaim removes a volume whose claim is gone, folder first: a volume object that is left can be tried again.
func (p *provisioner) reclaim(ctx context.Context, v *corev1.PersistentVolume) {
	if v.Annotations["pv.kubernetes.io/provisioned-by"] != p.driver || v.Status.Phase != corev1.VolumeReleased ||
		v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || v.Spec.Local == nil || v.DeletionTimestamp != nil {
		return
	}
	// Only ever a folder of ours, whatever the object says.
	if path := v.Spec.Local.Path; filepath.Dir(path) != p.dir || !strings.HasPrefix(filepath.Base(path), "pvc-") {
		log.Printf("volume %s: %s is not below %s; left alone", v.Name, path, p.dir)
		return
	}
	if err := os.RemoveAll(v.Spec.Local.Path); err != nil {
		log.Printf("volume %s: %v", v.Name, err)
		return
	}
	if err := p.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{}); err != nil && !errors.IsNotFound(err) {
		log.Printf("volume %s: %v", v.Name, err)
		return
	}
	log.Printf("volume %s: removed", v.Name)
}
